#!/usr/bin/env bash
# Everything that has to hold before a change is merged. The tests come last, so that their verdict is the last thing
# on the screen; the times of the stages before them are printed just above.
#
# With QUICK=1 only the format, the lints, the unit tests and the test programs that take seconds: an answer within
# minutes after a change. It replaces no full run.
set -euo pipefail
cd "$(dirname "$0")/.."
# shellcheck source=scripts/common.sh
source scripts/common.sh

deny_version=0.20.2

# Everything is built once: what would make the next build quicker takes more room than all the rest.
export CARGO_INCREMENTAL=0

# models ARGUMENTS...: the model checks, in the copy of the source that has planted bugs, which they must find.
models() {
    cargo run --quiet -p windfall-mutation >/dev/null
    (cd target/mutation && WINDFALL_MODEL_BUGS=1 cargo test -p windfall-engine -p windfall-base --features model --lib "$@")
}

times=()
stage=
deny_build=

cleanup() {
    local code=$?
    # An install that nothing waits for any more would go on after us.
    if [[ -n $deny_build ]]; then
        kill -- "-$deny_build" 2>/dev/null || true
    fi
    if [[ $code != 0 && -n $stage ]]; then
        printf '\nFAILED: %s\n' "$stage" >&2
    fi
}
trap cleanup EXIT
trap 'exit 130' INT
trap 'exit 143' TERM

# run NAME COMMAND...: a stage, with its time.
run() {
    stage=$1
    shift
    say "$stage"
    local start=$SECONDS
    "$@"
    times+=("$(printf '%5d s  %s' $((SECONDS - start)) "$stage")")
    stage=
}

# It runs beside the other builds, and yields to them.
start_deny_build() {
    if has_tool cargo-deny; then
        return
    fi
    say "installing cargo-deny $deny_version into target/tools (in the background)"
    mkdir -p "$tools"
    set -m
    (renice -n 10 "$BASHPID" >/dev/null && install_tool cargo-deny "$deny_version") >"$tools/install.log" 2>&1 </dev/null &
    deny_build=$!
    set +m
}

await_deny_build() {
    if [[ -z $deny_build ]]; then
        echo "cargo-deny is there"
        return
    fi
    wait "$deny_build" || {
        cat "$tools/install.log" >&2
        fail "cargo-deny could not be installed"
    }
    deny_build=
}

licences() {
    PATH="$tools/bin:$PATH" cargo deny check licenses bans sources
}

documentation() {
    RUSTDOCFLAGS="-D warnings" cargo doc --workspace --no-deps --document-private-items
}

rust_parts=(fmt clippy)
need_rust
if [[ ${QUICK:-} == 1 ]]; then
    run "format" cargo fmt --all --check
    run "lints" cargo clippy --workspace --all-targets -- -D warnings
    run "quick tests" cargo test --workspace --lib --test house_rules --test drop_cost --test tables --test database \
        --test cursors --test bad_input --test examples
    say "passed, in a quick run: make test runs everything"
    printf '%s\n' "${times[@]}"
    exit
fi
# One test watches the system calls of a drop.
need strace strace
start_deny_build
run "format" cargo fmt --all --check
# The feature adds tests: one look sees it all.
run "lints" cargo clippy --workspace --all-targets --features windfall/model -- -D warnings
# As a release is built: without debug assertions, and without what the tests ask for.
run "lints of the product" cargo clippy --release -p windfall-measure -p windfall-lab -p windfall-cli -- -D warnings
# The library alone: the command enables features of it.
run "lints of the library" cargo clippy --release -p windfall -p windfall-base -p windfall-btree -p windfall-engine -- -D warnings
# And without the lab, which a build may leave out, but with the engines that the benchmarks compare with: the C code of
# two of them is in their packages.
run "lints without the lab" cargo clippy -p windfall-cli --no-default-features --features peers -- -D warnings
run "documentation" documentation
run "build of the tests" cargo test --workspace --no-run
# The test suites, in the copy of the source that has planted bugs.
run "build of the mutation suite" cargo test --quiet -p windfall-mutation --test mutation_suite -- --exact the_suites_are_built
run "build of the models" models --no-run
# The tests start when nothing else competes with them.
run "wait for cargo-deny" await_deny_build
run "licences" licences
run "mutation suite" cargo test -p windfall-mutation -- --nocapture
need_tests models --quiet -- interleavings::
run "models" models -- interleavings::

say "passed so far"
printf '%s\n' "${times[@]}"
printf '%5d s  together\n' "$SECONDS"

run "tests" cargo test --workspace --exclude windfall-mutation
