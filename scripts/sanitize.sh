#!/usr/bin/env bash
# Runs tests with real threads under the thread and the address sanitizer of a nightly compiler, which find races and
# invalid memory accesses. The argument is the number of seconds of the stress test under each of them. First each
# sanitizer must find a planted bug.
set -euo pipefail
cd "$(dirname "$0")/.."
# shellcheck source=scripts/common.sh
source scripts/common.sh

# Pinned, because sanitizers change with the compiler: a new report should come from a change of the code.
nightly=nightly-2026-05-20
seconds=${1:-60}
machine=$(uname -m)-unknown-linux-gnu
[[ $seconds =~ ^[0-9]+$ ]] || fail "\`$seconds\` is not a number of seconds"

need_rust
need_rustup
if ! rustup run "$nightly" rustc --version >/dev/null 2>&1 ||
    [[ ! -d $(rustup run "$nightly" rustc --print sysroot)/lib/rustlib/src/rust ]]; then
    say "installing Rust $nightly and its sources"
    rustup toolchain install "$nightly" --profile minimal --component rust-src --no-self-update ||
        fail "Rust $nightly could not be installed (see above): nothing was sanitized"
fi

# with SANITIZER COMMAND...: runs cargo with this sanitizer. The standard library is instrumented as well, because the
# sanitizer would miss its atomics and frees. System calls go through the C library, whose writes the sanitizer knows.
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

# finds SANITIZER TEST WORDS: fails unless the sanitizer reports the bug that is planted in the test.
finds() {
    local output
    if output=$(with "$1" test --test planted -- --ignored --exact "$2" 2>&1) || [[ $output != *"$3"* ]]; then
        echo "$output" >&2
        fail "the $1 sanitizer does not find $2, so its results for the engine mean nothing"
    fi
    echo "$1: $2 was found"
}

# named TESTS -- NAME...: runs the tests of these names, and fails if one does not exist.
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
    say "$sanitizer sanitizer: unit tests of the concurrent parts"
    named --lib -- buffer:: tests::pool sync:: log::tests::threads log::tests::every_one_of_many \
        txn::mvcc::ids txn::locks txn::mvcc::active txn::tests::threads tree::tests::concurrent
    say "$sanitizer sanitizer: transactions that wait for each other"
    named --test transactions -- crowds:: background::
    named --test isolation -- histories_of_the_engine hermitage::
    say "$sanitizer sanitizer: stress tests, for $seconds s"
    with "$sanitizer" test --test concurrent --test live_check --test workers -- --nocapture
done
say "only the planted bugs were found"
