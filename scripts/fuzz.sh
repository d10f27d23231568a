#!/usr/bin/env bash
# Fuzzes every decoder of untrusted bytes.
#
#   fuzz.sh SECONDS             all targets, for SECONDS in total; FUZZ_SEED=N repeats a run
#   fuzz.sh SECONDS TARGET...   only these targets
#   fuzz.sh replay TARGET FILE  runs one input again
#   fuzz.sh minimise [TARGET]   reduces the corpus and the new inputs to those that reach different code
#
# Neither another tool nor a nightly toolchain is needed: the crate `libfuzzer-sys` builds libFuzzer, the pinned
# compiler supports the instrumentation, and RUSTC_BOOTSTRAP lets it link its own AddressSanitizer. So the fuzzer tests
# the code that the same compiler generates for users.
set -euo pipefail
cd "$(dirname "$0")/.."
# shellcheck source=scripts/common.sh
source scripts/common.sh

crate=crates/windfall-fuzz
machine=$(uname -m)-unknown-linux-gnu
build=$PWD/target/fuzz
binary=$build/$machine/fuzz/windfall-fuzz
work=$build/work
# Limits of one input: seconds, and MiB in total and per allocation. Leak detection is off, because epochs free memory
# later.
limits=(-timeout=25 -rss_limit_mb=2048 -malloc_limit_mb=128 -max_len=8192 -detect_leaks=0)

build_fuzzer() {
    need_rust
    need g++ g++
    say "building the fuzzer"
    local flags=(
        -Cpasses=sancov-module
        -Cllvm-args=-sanitizer-coverage-level=4
        -Cllvm-args=-sanitizer-coverage-inline-8bit-counters
        -Cllvm-args=-sanitizer-coverage-pc-table
        -Cllvm-args=-sanitizer-coverage-trace-compares
        -Zsanitizer=address
    )
    # An explicit target, so that build scripts and macros are not instrumented.
    RUSTC_BOOTSTRAP=1 RUSTFLAGS="${flags[*]}" cargo build --profile fuzz --target "$machine" --target-dir "$build" \
        -p windfall-fuzz --features fuzzer --bin windfall-fuzz
}

fuzzer() {
    local target=$1
    shift
    WINDFALL_FUZZ_TARGET=$target "$binary" "$@"
}

# The corpus of each target is one archive, because its inputs are many and small. libFuzzer needs a folder.
unpack() {
    rm -rf "$work/$1/corpus"
    mkdir -p "$work/$1/corpus"
    [[ ! -f $crate/corpus/$1.tar ]] || tar -xf "$crate/corpus/$1.tar" -C "$work/$1/corpus"
}

# The archive depends on the inputs only, so that it changes in the repository only if they do.
pack() {
    local archive=$PWD/$crate/corpus/$1.tar
    rm -f "$archive"
    if [[ -n $(ls "$work/$1/corpus") ]]; then
        mkdir -p "$crate/corpus"
        (cd "$work/$1/corpus" && LC_ALL=C tar -cf "$archive" --sort=name --format=ustar --mode=644 --mtime=@0 \
            --owner=0 --group=0 --numeric-owner --record-size=512 -- *)
    fi
}

all_targets() {
    WINDFALL_FUZZ_TARGET=list "$binary"
}

number_after() {
    sed -n "s/^$2 *//p" "$1" | tail -n 1
}

# fuzz TARGET SECONDS: runs the target, and adds a line to the table.
fuzz() {
    local target=$1 seconds=$2
    local log=$work/$target.log
    mkdir -p "$work/$target/new" "$work/$target/seeds" "$work/$target/found"
    unpack "$target"
    printf '%-14s %4d s ... ' "$target" "$seconds"
    local state=held known=("$work/$target/corpus")
    [[ ! -d $crate/regressions/$target ]] || known+=("$crate/regressions/$target")
    WINDFALL_FUZZ_SEEDS=$work/$target/seeds fuzzer "$target" "${limits[@]}" -max_total_time="$seconds" \
        -print_final_stats=1 -seed="${FUZZ_SEED:-0}" -artifact_prefix="$work/$target/found/" \
        "$work/$target/new" "$work/$target/seeds" "${known[@]}" \
        >"$log" 2>&1 </dev/null || state=broken
    local runs new
    runs=$(number_after "$log" stat::number_of_executed_units:)
    new=$(number_after "$log" stat::new_units_added:)
    printf '%s\n' "$state"
    local crashes=0
    if [[ $state == broken ]]; then
        crashes=1
        broken+=("$target")
    fi
    table+=("$(printf '%-14s %12s %12s %8d' "$target" "${runs:-0}" "${new:-0}" "$crashes")")
}

# minimise TARGET: reduces its corpus and new inputs to a small set with the same coverage.
minimise() {
    local target=$1 kept=$work/$1/kept
    rm -rf "$kept"
    mkdir -p "$kept" "$work/$target/new"
    unpack "$target"
    fuzzer "$target" "${limits[@]}" -merge=1 "$kept" "$work/$target/corpus" "$work/$target/new" \
        >"$work/$target.log" 2>&1 </dev/null || fail "the corpus of $target could not be minimised: see $work/$target.log"
    # Only the shortest inputs are kept, up to 48 KiB, to keep the repository small.
    local size=0 file
    rm -f "$work/$target/corpus"/*
    while read -r bytes file; do
        ((size += bytes)) || true
        ((size > 48 << 10)) && break
        mv "$file" "$work/$target/corpus/"
    done < <(find "$kept" -type f -printf '%s %p\n' | sort -n)
    pack "$target"
    printf '%-14s %5d inputs\n' "$target" "$(find "$work/$target/corpus" -type f | wc -l)"
}

case ${1:-} in
replay)
    [[ $# == 3 ]] || fail "give a target and a file: fuzz.sh replay TARGET FILE"
    build_fuzzer
    fuzzer "$2" "${limits[@]}" "$3"
    exit
    ;;
minimise)
    shift
    build_fuzzer
    targets=("$@")
    [[ $# != 0 ]] || mapfile -t targets < <(all_targets)
    for target in "${targets[@]}"; do
        minimise "$target"
    done
    exit
    ;;
'' | *[!0-9]*)
    fail "give the number of seconds: make fuzz SECONDS=600"
    ;;
esac

total=$1
shift
build_fuzzer
targets=("$@")
[[ $# != 0 ]] || mapfile -t targets < <(all_targets)
each=$((total / ${#targets[@]}))
((each > 0)) || each=1
say "fuzzing ${#targets[@]} targets, $each s each"
broken=()
table=()
for target in "${targets[@]}"; do
    fuzz "$target" "$each"
done

say "results"
printf '%-14s %12s %12s %8s\n' target executions "new inputs" crashes
printf '%s\n' "${table[@]}"
if ((${#broken[@]} > 0)); then
    for target in "${broken[@]}"; do
        printf '\n%s: its output is in %s\n' "$target" "$work/$target.log"
        find "$work/$target/found" -type f -newer "$binary" -printf "again: bash scripts/fuzz.sh replay $target %p\n"
        printf 'to keep it as a test: mkdir -p %s && mv FILE there\n' "$crate/regressions/$target"
    done
    fail "these targets are broken: ${broken[*]}"
fi
