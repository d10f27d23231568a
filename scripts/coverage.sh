#!/usr/bin/env bash
# Measures which lines and branches of the engine its tests run: prints a table by folder, and writes HTML pages that
# show each line. Test support (simulated disk and clock, models, fuzz targets) is not counted.
set -euo pipefail
cd "$(dirname "$0")/.."
# shellcheck source=scripts/common.sh
source scripts/common.sh

llvm_cov_version=0.9.1

need_rust
need_tool cargo-llvm-cov "$llvm_cov_version"
need jq jq
need column bsdextrautils
if ! compgen -G "$(rustc --print sysroot)/lib/rustlib/*/bin/llvm-profdata" >/dev/null; then
    need_rustup
    say "installing the LLVM tools of Rust $toolchain"
    rustup toolchain install "$toolchain" --profile minimal --component llvm-tools --no-self-update
fi

# Branch coverage is unstable: this enables it in the pinned compiler.
export RUSTC_BOOTSTRAP=1
export CARGO_TARGET_DIR=$PWD/target/coverage
engine=(-p windfall -p windfall-base -p windfall-btree -p windfall-engine -p windfall-sim)
beside='/windfall-sim/|/(tests|interleavings|model|fuzz)/|/(tests|interleavings|fuzz|testpool|test_pool|test_disk|test_engine|pause|failpoint|model)\.rs|sync/bug\.rs'
say "running the tests of the library"
cargo llvm-cov --no-report --branch "${engine[@]}"
say "writing the coverage of each line: target/coverage/html/index.html"
cargo llvm-cov report "${engine[@]}" --branch --html --output-dir "$CARGO_TARGET_DIR" --ignore-filename-regex "$beside"
say "by folder"
cargo llvm-cov report "${engine[@]}" --branch --json --summary-only --ignore-filename-regex "$beside" | jq -r '
    def share: if .count == 0 then "-" else (1000 * .covered / .count | round | "\(. / 10 | floor).\(. % 10) %") end;
    def sum(part): {count: (map(part.count) | add), covered: (map(part.covered) | add)};
    def row(name): [name, length, (sum(.lines) | .count, share), (sum(.branches) | .count, share)];
    [.data[0].files[] | .summary + {folder: (.filename | sub(".*/crates/windfall(-base|-btree|-engine)?/src/(storage/)?"; "") | split("/")
        | if length > 1 then .[0] + "/" else "(no folder)" end)}]
    | ["folder", "files", "lines", "run", "branches", "run"],
        (group_by(.folder)[] | row(.[0].folder)), row("together")
    | @tsv' | column -t -s $'\t' -R 2,3,4,5,6
