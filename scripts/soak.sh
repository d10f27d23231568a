#!/usr/bin/env bash
# The nets of the tests with ever new seeds, one after the other, until the time is over. A net that catches something
# prints the command that runs the case again, and ends this. To add one: a function that takes seconds and a seed,
# prints a line now and then, ends in time with a count, and fails when it has caught something; and its name below.
set -euo pipefail
cd "$(dirname "$0")/.."
# shellcheck source=scripts/common.sh
source scripts/common.sh

nets=(crash faults damage kill bank isolation open_transactions limits models threads)
# Worth their builds in a long soak only, or by name.
long_nets=(fuzz mutants)

# A test of the engine that draws new cases for so many seconds: soak_test TARGET SECONDS SEED [NAME].
soak_test() {
    local name=${4:-soak}
    need_tests cargo test --quiet -p windfall --test "$1" -- $'\n'"$name: test"$'\n'
    WINDFALL_SOAK_SECONDS=$2 WINDFALL_SOAK_SEED=$3 \
        cargo test --quiet -p windfall --test "$1" -- --exact --ignored --nocapture "$name"
}

net_crash() {
    soak_test crash_points "$@"
}

net_faults() {
    soak_test faults "$@"
}

net_damage() {
    soak_test damage "$@"
}

net_kill() {
    soak_test kill "$@"
}

# Half of the time for simulated crashes, half for kills.
net_bank() {
    soak_test bank "$((($1 + 1) / 2))" "$2" crashes::soak
    soak_test bank "$((($1 + 1) / 2))" "$2" kills::soak
}

net_isolation() {
    soak_test isolation "$@"
}

net_open_transactions() {
    soak_test open_transactions "$@"
}

# A case in full may take some minutes, and is not cut off. All come before any comes again.
net_limits() {
    WINDFALL_LIMITS_TURNS=$notes/limits soak_test limits "$@"
}

# Orders that no run before has had, as many as the time allows: the usual ones take some 25 s.
net_models() {
    need_tests cargo test --quiet -p windfall-engine -p windfall-base --features model --lib -- interleavings::
    WINDFALL_MODEL_SEED=$2 WINDFALL_MODEL_FACTOR=$(($1 / 25 + 1)) \
        cargo test --quiet -p windfall-engine -p windfall-base --features model --lib -- interleavings::
}

# Real threads; the tests of a file share the time.
net_threads() {
    echo "again: CONCURRENT_SEED=$2 CONCURRENT_SECONDS=$1 cargo test -p windfall --test concurrent"
    CONCURRENT_SEED=$2 CONCURRENT_SECONDS=$1 cargo test --quiet -p windfall --test concurrent
}

# The fuzzer takes 32 bits of a seed.
net_fuzz() {
    FUZZ_SEED=$(($2 % 4294967295 + 1)) bash scripts/fuzz.sh "$1"
}

# One sample over all calls: it goes on where it was.
net_mutants() {
    bash scripts/mutants.sh "$1" | tee "$notes/mutants"
}

usage() {
    cat <<END
usage: soak.sh [--seconds N] [--seed N] [--nets "NAME ..."]
  --seconds N   how long, over all nets together (600)
  --seed N      the first seed; without it the time decides, and it is printed
  --nets NAMES  some of: ${nets[*]} ${long_nets[*]} (all; ${long_nets[*]} from an hour on)
END
}

seconds=600
seed=$(date +%s)
named=
while (($# > 0)); do
    case $1 in
        --seconds) seconds=${2-} ;;
        --seed) seed=${2-} ;;
        --nets)
            read -r -a nets <<<"${2-}"
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
    nets+=("${long_nets[@]}")
fi
((${#nets[@]} > 0)) || fail "--nets names no net"
for net in "${nets[@]}"; do
    declare -F "net_$net" >/dev/null || fail "there is no net \`$net\` (--help lists them)"
done

need_rust
say "building"
cargo test --quiet -p windfall --no-run
# What nets note of how far they are.
notes=$(mktemp -d)
trap 'rm -rf "$notes"' EXIT
# Rounds of a minute or two, so that every net gets its turn early; but the mutants have their part of the time in one turn,
# because each change takes minutes.
end=$((SECONDS + seconds))
round=0
while ((SECONDS < end)); do
    for net in "${nets[@]}"; do
        left=$((end - SECONDS))
        ((left > 0)) || break
        turn=$((seconds / ${#nets[@]}))
        if [[ $net == mutants ]]; then
            ((round == 0)) || ((${#nets[@]} == 1)) || continue
        else
            turn=$((turn < 120 ? turn : 120))
        fi
        turn=$((turn < left ? turn : left))
        say "$net: $((turn > 0 ? turn : 1)) s of $left s left, from seed $((seed + round * 1000000))"
        # Behind `||` bash would let a net go on after what has failed in it.
        set +e
        (
            set -e
            "net_$net" "$((turn > 0 ? turn : 1))" "$((seed + round * 1000000))"
        )
        status=$?
        set -e
        ((status == 0)) || fail "the net \`$net\` has caught something (see above)"
    done
    round=$((round + 1))
done
if [[ -e $notes/mutants ]]; then
    grep 'changes made' "$notes/mutants"
fi
say "nothing was caught: nets ${nets[*]}, $SECONDS s, from seed $seed"
