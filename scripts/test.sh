#!/usr/bin/env bash
# Runs all checks that a change must pass before it is merged. The tests run last, so that their result is at the end of
# the output. They run in several concurrent parts, because few test programs use all cores until they end; the output
# of each part is printed when all parts have ended.
#
# QUICK=1 runs only the format check, the lints, the unit tests and the test programs that take seconds. It gives a
# result within minutes, but does not replace a full run.
set -euo pipefail
cd "$(dirname "$0")/.."
# shellcheck source=scripts/common.sh
source scripts/common.sh

deny_version=0.20.2

# Each target is built once: incremental data would take more space than everything else, for no gain.
export CARGO_INCREMENTAL=0
# Lines of Cargo's output are counted below, so its format must not depend on the user's settings.
export CARGO_TERM_COLOR=never CARGO_TERM_QUIET=false CARGO_TERM_VERBOSE=false

# models ARGUMENTS...: runs the model checks in the copy of the source with planted bugs, which they must find. The
# build of the mutation suite creates this copy.
models() {
    (cd target/mutation && WINDFALL_MODEL_BUGS=1 cargo test -p windfall-engine -p windfall-base --features model --lib "$@")
}

# All tests but those of the mutation suite. The command counts waits for dropping threads, as `make bench` builds it; in
# a plain `cargo test --workspace` it does not. The library has its marks in both, and has none in the models and in the
# lints of the library.
all=(cargo test --workspace --exclude windfall-mutation --features windfall-cli/drop-waits)

times=()
stage=
deny_build=
# The process ID of each part of the tests by its name, and the folder of their output.
declare -A parts=()
outputs=$PWD/target/test-output

cleanup() {
    local code=$? job
    # Background jobs would outlive this script.
    for job in $deny_build "${parts[@]}"; do
        kill -- "-$job" 2>/dev/null || true
    done
    if [[ $code != 0 && -n $stage ]]; then
        printf '\nFAILED: %s\n' "$stage" >&2
    fi
}
trap cleanup EXIT
trap 'exit 130' INT
trap 'exit 143' TERM

# run NAME COMMAND...: runs a stage and records its time.
run() {
    stage=$1
    shift
    say "$stage"
    local start=$SECONDS
    "$@"
    times+=("$(printf '%5d s  %s' $((SECONDS - start)) "$stage")")
    stage=
}

# Runs concurrently with the other builds, at a lower priority.
start_deny_build() {
    if has_tool cargo-deny; then
        return
    fi
    say "installing cargo-deny $deny_version into target/tools (in the background)"
    mkdir -p "$tools"
    set -m
    # A build without optimisation takes half the time, and cargo-deny runs for a second only.
    (renice -n 10 "$BASHPID" >/dev/null && CARGO_PROFILE_DEV_DEBUG=0 install_tool cargo-deny "$deny_version" --debug) \
        >"$tools/install.log" 2>&1 </dev/null &
    deny_build=$!
    set +m
}

await_deny_build() {
    if [[ -z $deny_build ]]; then
        echo "cargo-deny is already installed"
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

# start_part NAME COMMAND...: starts a part of the tests. Its output goes to a file; only the lines that show its
# progress and its failures are printed at once.
start_part() {
    local name=$1
    shift
    set -m
    ("$@" 2>&1 | tee "$outputs/$name" | grep --line-buffered -E '^ +Running |^test result: |FAILED|panicked at' |
        sed -u "s/^ */$name: /" || exit "${PIPESTATUS[0]}") </dev/null &
    parts[$name]=$!
    set +m
}

# Waits for all parts and prints the output of each. The parts that failed come last.
await_parts() {
    local name passed=() failed=()
    for name in "${!parts[@]}"; do
        if wait "${parts[$name]}"; then
            passed+=("$name")
        else
            failed+=("$name")
        fi
        unset "parts[$name]"
    done
    for name in "${passed[@]}" "${failed[@]}"; do
        say "output of $name"
        cat "$outputs/$name"
    done
    ((${#failed[@]} == 0)) || fail "failed: ${failed[*]}"
}

# clippy_as_released ARGUMENTS...: runs Clippy without debug assertions, the only difference between the profiles that
# the source can see. The dependencies keep the profile of the tests, so they are not built again.
clippy_as_released() {
    local settings=() package
    for package in crates/*; do
        settings+=(--config "profile.dev.package.${package##*/}.debug-assertions=false")
    done
    cargo clippy "$@" "${settings[@]}" -- -D warnings
}

build() {
    "${all[@]}" --no-run 2>&1 | tee "$outputs/build"
    cargo test --quiet -p windfall-mutation --no-run
}

# The parts take about the same time. The counts at the end ensure that every program that was built has run.
tests() {
    start_part mutation cargo test -p windfall-mutation --no-fail-fast -- --nocapture
    start_part programs-a-to-c "${all[@]}" --no-fail-fast --test '[a-c]*'
    start_part programs-d-to-h "${all[@]}" --no-fail-fast --test '[d-h]*'
    start_part programs-i "${all[@]}" --no-fail-fast --test 'i*'
    start_part programs-from-j "${all[@]}" --no-fail-fast --test '[!a-i]*'
    start_part units "${all[@]}" --no-fail-fast --lib --bins
    start_part models models --quiet -- interleavings::
    start_part examples-in-documentation "${all[@]}" --no-fail-fast --doc
    await_parts
    local built run
    built=$(grep -c '^  Executable ' "$outputs/build") || true
    run=$(cat "$outputs"/programs-* "$outputs/units" | grep -c '^     Running ') || true
    [[ $built == "$run" ]] || fail "$built test programs were built, and $run have run"
}

rm -rf "$outputs"
mkdir -p "$outputs"
rust_parts=(fmt clippy)
need_rust
if [[ ${QUICK:-} == 1 ]]; then
    run "format" cargo fmt --all --check
    library=(-p windfall -p windfall-base -p windfall-btree -p windfall-engine)
    run "lints of the library" cargo clippy "${library[@]}" --all-targets -- -D warnings
    run "quick tests" cargo test "${library[@]}" --lib --test house_rules --test drop_cost --test tables --test database \
        --test cursors --test bad_input --test examples
    say "passed, in a quick run: make test runs everything"
    printf '%s\n' "${times[@]}"
    exit
fi
# One test traces the system calls of a drop.
need strace strace
start_deny_build
run "format" cargo fmt --all --check
# With this feature the lints cover the model checks as well.
run "lints" cargo clippy --workspace --all-targets --features windfall/model -- -D warnings
# The code as in a release: without debug assertions and without the features of the tests.
run "lints of the product" clippy_as_released -p windfall-measure -p windfall-lab -p windfall-cli
# The library alone, because the command enables some of its features.
run "lints of the library" clippy_as_released -p windfall -p windfall-base -p windfall-btree -p windfall-engine
# The lab is optional, so the command must also build without it. What `make bench` adds is checked here as well: the
# count of waits, and the engines to compare with, two of which bring their C code in their packages.
run "lints without the lab" cargo clippy -p windfall-cli --no-default-features --features peers,drop-waits -- -D warnings
run "documentation" documentation
run "build of the tests" build
# Builds the test suites in the copy of the source with planted bugs.
run "build of the mutation suite" cargo test --quiet -p windfall-mutation --test mutation_suite -- --exact the_suites_are_built
run "build of the models" models --no-run
# The tests start after all builds, because these would slow them down.
run "wait for cargo-deny" await_deny_build
run "licences" licences
need_tests models --quiet -- interleavings::

say "passed so far"
printf '%s\n' "${times[@]}"
printf '%5d s  together\n' "$SECONDS"

run "tests" tests
say "passed"
printf '%s\n' "${times[@]}"
printf '%5d s  together\n' "$SECONDS"
