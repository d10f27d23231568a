#!/usr/bin/env bash
# Which lines and branches of the engine its tests run: a table by folder, and the pages that show each line. What
# stands beside the engine for its tests (simulated disk and clock, models, fuzz targets) is not counted.
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
    say "installing what of LLVM belongs to Rust $toolchain"
    rustup toolchain install "$toolchain" --profile minimal --component llvm-tools --no-self-update
fi

# Counting branches is not stable yet: this lets the pinned compiler do it.
export RUSTC_BOOTSTRAP=1
export CARGO_TARGET_DIR=$PWD/target/coverage
engine=(-p windfall -p windfall-base -p windfall-btree -p windfall-engine -p windfall-sim)
beside='/windfall-sim/|/(tests|interleavings|model|fuzz)/|/(tests|interleavings|fuzz|testpool|test_pool|test_disk|test_engine|pause|failpoint|model)\.rs|sync/bug\.rs'
say "running the tests of the library"
cargo llvm-cov --no-report --branch "${engine[@]}"
say "line by line: target/coverage/html/index.html"
cargo llvm-cov report "${engine[@]}" --branch --html --output-dir "$CARGO_TARGET_DIR" --ignore-filename-regex "$beside"
say "by folder"
cargo llvm-cov report "${engine[@]}" --branch --json --summary-only --ignore-filename-regex "$beside" | jq -r '
    def share: if .count == 0 then "-" else (1000 * .covered / .count | round | "\(. / 10 | floor).\(. % 10) %") end;
    def sum(part): {count: (map(part.count) | add), covered: (map(part.covered) | add)};
    def row(name): [name, length, (sum(.lines) | .count, share), (sum(.branches) | .count, share)];
    [.data[0].files[] | .summary + {folder: (.filename | sub(".*/crates/windfall(-base|-btree|-engine)?/src/(storage/)?"; "") | split("/")
        | if length > 1 then .[0] + "/" else "above them" end)}]
    | ["folder", "files", "lines", "run", "branches", "run"],
        (group_by(.folder)[] | row(.[0].folder)), row("together")
    | @tsv' | column -t -s $'\t' -R 2,3,4,5,6
