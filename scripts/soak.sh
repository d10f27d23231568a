#!/usr/bin/env bash
# The suites of the tests with ever new seeds, one after the other, until the time is over. A suite that finds something
# prints the command that runs the case again, and ends this. To add one: a function that takes seconds and a seed,
# prints a line now and then, ends in time with a count, and fails when it has found something; and its name below.
set -euo pipefail
cd "$(dirname "$0")/.."
# shellcheck source=scripts/common.sh
source scripts/common.sh

suites=(crash faults damage kill bank isolation open_transactions limits models threads)
# Worth their builds in a long soak only, or by name.
long_suites=(fuzz mutants)

# A test of the engine that draws new cases for so many seconds: soak_test TARGET SECONDS SEED [NAME].
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

# Half of the time for simulated crashes, half for kills.
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

# A case in full may take some minutes, and is not cut off. All come before any comes again.
suite_limits() {
    WINDFALL_LIMITS_TURNS=$notes/limits soak_test limits "$@"
}

# Orders that no run before has had, as many as the time allows: the usual ones take some 25 s.
suite_models() {
    need_tests cargo test --quiet -p windfall-engine -p windfall-base --features model --lib -- interleavings::
    WINDFALL_MODEL_SEED=$2 WINDFALL_MODEL_FACTOR=$(($1 / 25 + 1)) \
        cargo test --quiet -p windfall-engine -p windfall-base --features model --lib -- interleavings::
}

# Real threads; the tests of a file share the time.
suite_threads() {
    echo "again: CONCURRENT_SEED=$2 CONCURRENT_SECONDS=$1 cargo test -p windfall --test concurrent"
    CONCURRENT_SEED=$2 CONCURRENT_SECONDS=$1 cargo test --quiet -p windfall --test concurrent
}

# The fuzzer takes 32 bits of a seed.
suite_fuzz() {
    FUZZ_SEED=$(($2 % 4294967295 + 1)) bash scripts/fuzz.sh "$1"
}

# One sample over all calls: it goes on where it was.
suite_mutants() {
    bash scripts/mutants.sh "$1" | tee "$notes/mutants"
}

usage() {
    cat <<END
usage: soak.sh [--seconds N] [--seed N] [--suites "NAME ..."]
  --seconds N   how long, over all suites together (600)
  --seed N      the first seed; without it the time decides, and it is printed
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
        *) fail "unknown: $1 (--help says what there is)" ;;
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
# What suites note of how far they are.
notes=$(mktemp -d)
trap 'rm -rf "$notes"' EXIT
# Rounds of a minute or two, so that every suite gets its turn early; but the mutants have their part of the time in one turn,
# because each change takes minutes.
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
        # Behind `||` bash would let a suite go on after what has failed in it.
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
