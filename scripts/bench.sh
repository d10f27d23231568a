#!/usr/bin/env bash
# Runs the benchmarks in turn: those in BENCH, or all. Each gets the arguments of this script.
set -euo pipefail
cd "$(dirname "$0")/.."
# shellcheck source=scripts/common.sh
source scripts/common.sh

all="drop create-drop foreground big-file memory-back read larger-than-memory recovery footprint transactions calls"

need_rust
# `drop` traces system calls with strace.
need strace strace
say "building"
cargo build --release -p windfall-cli --features peers,drop-waits
# `calls` measures a program as others build it: without link-time optimisation, and without what this build adds.
for bench in ${BENCH:-$all}; do
    if [[ $bench == calls ]]; then
        cargo build --profile no-lto -p windfall-cli --no-default-features --example calls --example calls_library
    fi
done

failed=()
for bench in ${BENCH:-$all}; do
    say "windfall bench $bench $*"
    "${CARGO_TARGET_DIR:-target}/release/windfall" bench "$bench" "$@" || failed+=("$bench")
done
if ((${#failed[@]} > 0)); then
    fail "failed, or did not meet a bound: ${failed[*]}"
fi
