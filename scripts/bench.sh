#!/usr/bin/env bash
# The benchmarks, one after the other: those that BENCH names, or all. Arguments are passed on to each.
set -euo pipefail
cd "$(dirname "$0")/.."
# shellcheck source=scripts/common.sh
source scripts/common.sh

all="drop create-drop foreground big-file memory-back read larger-than-memory recovery footprint transactions"

need_rust
# `drop` watches system calls with strace.
need strace strace
say "building"
cargo build --release -p windfall-cli --features peers

failed=()
for bench in ${BENCH:-$all}; do
    say "windfall bench $bench $*"
    "${CARGO_TARGET_DIR:-target}/release/windfall" bench "$bench" "$@" || failed+=("$bench")
done
if ((${#failed[@]} > 0)); then
    fail "these did not reach their bounds, or did not run: ${failed[*]}"
fi
