#!/usr/bin/env bash
# Runs the test suites in turn with new seeds until the time is over. The first failure ends the run; the suite prints
# the command that runs the failing case again. To add a suite, write a function `suite_NAME` and add NAME to the list
# below. The function gets seconds and a seed, prints its progress, ends in time with a count, and fails if it has found
# a bug.
set -euo pipefail
cd "$(dirname "$0")/.."
# shellcheck source=scripts/common.sh
source scripts/common.sh

suites=(crash faults damage kill bank isolation open_transactions limits models threads)
# These need further builds, so they run only in a long soak, or by name.
long_suites=(fuzz mutants)

# soak_test TARGET SECONDS SEED [NAME]: runs a test that generates new cases for this many seconds.
soak_test() {
    local name=${4:-soak}
    need_tests cargo test --quiet -p windfall --test "$1" -- $'\n'"$name: test"$'\n'
    WINDFALL_SOAK_SECONDS=$2 WINDFALL_SOAK_SEED=$3 \
        cargo test --quiet -p windfall --test "$1" -- --exact --ignored --nocapture "$name"
}

suite_crash() {
    soak_test crash_points "$@"
}

suite_faults() {
    soak_test faults "$@"
}

suite_damage() {
    soak_test damage "$@"
}

suite_kill() {
    soak_test kill "$@"
}

# Half of the time is for simulated crashes, half for kills.
suite_bank() {
    soak_test bank "$((($1 + 1) / 2))" "$2" crashes::soak
    soak_test bank "$((($1 + 1) / 2))" "$2" kills::soak
}

suite_isolation() {
    soak_test isolation "$@"
}

suite_open_transactions() {
    soak_test open_transactions "$@"
}

# A full case may take some minutes and is not interrupted. Each case runs once before any is repeated.
suite_limits() {
    WINDFALL_LIMITS_TURNS=$notes/limits soak_test limits "$@"
}

# The seed gives new schedules, and the factor as many as the time allows: those of `make test` take some 25 s.
suite_models() {
    need_tests cargo test --quiet -p windfall-engine -p windfall-base --features model --lib -- interleavings::
    WINDFALL_MODEL_SEED=$2 WINDFALL_MODEL_FACTOR=$(($1 / 25 + 1)) \
        cargo test --quiet -p windfall-engine -p windfall-base --features model --lib -- interleavings::
}

# Real threads. The tests of the file share the time.
suite_threads() {
    echo "to run it again: CONCURRENT_SEED=$2 CONCURRENT_SECONDS=$1 cargo test -p windfall --test concurrent"
    CONCURRENT_SEED=$2 CONCURRENT_SECONDS=$1 cargo test --quiet -p windfall --test concurrent
}

# The fuzzer takes a seed of 32 bits that is not zero.
suite_fuzz() {
    FUZZ_SEED=$(($2 % 4294967295 + 1)) bash scripts/fuzz.sh "$1"
}

# All calls work on one sample: each continues it.
suite_mutants() {
    bash scripts/mutants.sh "$1" | tee "$notes/mutants"
}

usage() {
    cat <<END
usage: soak.sh [--seconds N] [--seed N] [--suites "NAME ..."]
  --seconds N   total time of all suites (600)
  --seed N      the first seed; the default is the current time, and is printed
  --suites NAMES some of: ${suites[*]} ${long_suites[*]} (all; ${long_suites[*]} from an hour on)
END
}

seconds=600
seed=$(date +%s)
named=
while (($# > 0)); do
    case $1 in
        --seconds) seconds=${2-} ;;
        --seed) seed=${2-} ;;
        --suites)
            read -r -a suites <<<"${2-}"
            named=yes
            ;;
        --help | -h)
            usage
            exit 0
            ;;
        *) fail "unknown: $1 (see --help)" ;;
    esac
    (($# > 1)) || fail "$1 needs a value"
    shift 2
done
[[ $seconds =~ ^[1-9][0-9]*$ ]] || fail "--seconds is a number of seconds, not \`$seconds\`"
[[ $seed =~ ^[0-9]+$ ]] || fail "--seed is a number, not \`$seed\`"
if [[ -z $named ]] && ((seconds >= 3600)); then
    suites+=("${long_suites[@]}")
fi
((${#suites[@]} > 0)) || fail "--suites names no suite"
for suite in "${suites[@]}"; do
    declare -F "suite_$suite" >/dev/null || fail "there is no suite \`$suite\` (--help lists them)"
done

need_rust
say "building"
cargo test --quiet -p windfall --no-run
# The suites keep their progress here.
notes=$(mktemp -d)
trap 'rm -rf "$notes"' EXIT
# A turn takes two minutes at most, so that every suite gets its first turn early. The mutants get their whole share in
# one turn, because each mutant takes minutes.
end=$((SECONDS + seconds))
round=0
while ((SECONDS < end)); do
    for suite in "${suites[@]}"; do
        left=$((end - SECONDS))
        ((left > 0)) || break
        turn=$((seconds / ${#suites[@]}))
        if [[ $suite == mutants ]]; then
            ((round == 0)) || ((${#suites[@]} == 1)) || continue
        else
            turn=$((turn < 120 ? turn : 120))
        fi
        turn=$((turn < left ? turn : left))
        say "$suite: $((turn > 0 ? turn : 1)) s of $left s left, from seed $((seed + round * 1000000))"
        # bash ignores `set -e` in a command before `||`, so a suite would continue after a failure.
        set +e
        (
            set -e
            "suite_$suite" "$((turn > 0 ? turn : 1))" "$((seed + round * 1000000))"
        )
        status=$?
        set -e
        ((status == 0)) || fail "the suite \`$suite\` has found something (see above)"
    done
    round=$((round + 1))
done
if [[ -e $notes/mutants ]]; then
    grep 'changes made' "$notes/mutants"
fi
say "nothing was found: suites ${suites[*]}, $SECONDS s, from seed $seed"
