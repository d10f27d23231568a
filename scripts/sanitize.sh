#!/usr/bin/env bash
# What real threads do, under the sanitizers of a nightly compiler: races, and use of memory that is not theirs. The
# argument is how many seconds the stress lasts under each of them. First each has to find what was planted for it.
set -euo pipefail
cd "$(dirname "$0")/.."
# shellcheck source=scripts/common.sh
source scripts/common.sh

# Pinned: a sanitizer is a part of one compiler, and what a newer one reports is to be looked at in its own time.
nightly=nightly-2026-05-20
seconds=${1:-60}
machine=$(uname -m)-unknown-linux-gnu
[[ $seconds =~ ^[0-9]+$ ]] || fail "how many seconds? \`$seconds\` is no number"

need_rust
need_rustup
if ! rustup run "$nightly" rustc --version >/dev/null 2>&1 ||
    [[ ! -d $(rustup run "$nightly" rustc --print sysroot)/lib/rustlib/src/rust ]]; then
    say "installing Rust $nightly and its sources"
    rustup toolchain install "$nightly" --profile minimal --component rust-src --no-self-update ||
        fail "Rust $nightly cannot be had here (see above): nothing was sanitized"
fi

# with SANITIZER COMMAND...: the standard library is built along, or its atomics and its frees would not be seen. System
# calls go through the C library, which tells the sanitizer what they write.
with() {
    local sanitizer=$1 command=$2
    shift 2
    RUSTFLAGS="-Zsanitizer=$sanitizer --cfg rustix_use_libc" \
        TSAN_OPTIONS="suppressions=$PWD/scripts/sanitize.supp halt_on_error=1 second_deadlock_stack=1 history_size=7" \
        ASAN_OPTIONS="detect_leaks=1 detect_stack_use_after_return=1" \
        CONCURRENT_SECONDS=$seconds \
        RUSTUP_TOOLCHAIN=$nightly \
        cargo "$command" -Zbuild-std --target "$machine" --target-dir "target/sanitize/$sanitizer" -p windfall -p windfall-base -p windfall-btree -p windfall-engine -p windfall-sim "$@"
}

# finds SANITIZER TEST WORDS: whether the sanitizer finds what is planted in the test.
finds() {
    local told
    if told=$(with "$1" test --test planted -- --ignored --exact "$2" 2>&1) || [[ $told != *"$3"* ]]; then
        echo "$told" >&2
        fail "the $1 sanitizer does not find $2: what it says of the engine means nothing"
    fi
    echo "$1: $2 was found"
}

# named TESTS -- NAME...: runs the tests of these names, which are there.
named() {
    need_tests with "$sanitizer" test --quiet "$@"
    with "$sanitizer" test "$@"
}

for sanitizer in thread address; do
    say "building for the $sanitizer sanitizer"
    with "$sanitizer" test --lib --test planted --test concurrent --test live_check --test workers --test transactions --test isolation --no-run
    case $sanitizer in
        thread) finds thread a_race "ThreadSanitizer: data race" ;;
        address) finds address a_use_of_freed_memory "AddressSanitizer: heap-use-after-free" ;;
    esac
    say "$sanitizer sanitizer: the parts in which threads meet"
    named --lib -- buffer:: tests::pool sync:: log::tests::threads log::tests::every_one_of_many \
        txn::mvcc::ids txn::locks txn::mvcc::active txn::tests::threads tree::tests::concurrent
    say "$sanitizer sanitizer: transactions that wait for each other"
    named --test transactions -- crowds:: background::
    named --test isolation -- histories_of_the_engine hermitage::
    say "$sanitizer sanitizer: everything at once, for $seconds s"
    with "$sanitizer" test --test concurrent --test live_check --test workers -- --nocapture
done
say "nothing was found but what was planted"
