#!/usr/bin/env bash
# How many small changes of the engine's code do its tests notice? Draws a sample of what `cargo mutants` can change on
# the floors that .cargo/mutants.toml names, and runs the tests with each change: first those beside the code that are
# quick, the others if these pass, and at last the models. What was found is kept for this state of the code, so that the
# next call goes on with the sample.
set -euo pipefail
cd "$(dirname "$0")/.."
# shellcheck source=scripts/common.sh
source scripts/common.sh

mutants_version=27.1.0
# Of the viable ones of a whole sample.
bound=85
# A change that makes the tests run for so many times as long as without it hangs, and is noticed by that.
patience=5
# In seconds, for what takes next to none.
least_timeout=30
# Two thirds of the time of the tests beside the code: what the others notice need not wait for these.
slow=(a_tree_that_is_emptied_in_any_order crash_points_during_the_freeing_of_long_chains
    readers_and_cursors_during_splits_and_merges a_crash_during_a_build_leaves_the_index rows_change_while_an_index_is_built
    every_crash_point_of_short_histories a_hold_of_a_large_tree_is_as_short a_long_value_may_go_while_it_is_looked_at)
skips=("${slow[@]/#/--skip=}")
engine=(-p windfall -p windfall-base -p windfall-btree -p windfall-engine)
models=(--lib --features model)
# What stops at the first failure is an option of the test programs that the compiler keeps to itself.
export RUSTC_BOOTSTRAP=1

seconds=${1:?usage: mutants.sh SECONDS [SEED [SAMPLE]]}
seed=${2:-1}
sample=${3:-200}

need_rust
need git git
need_tool cargo-mutants "$mutants_version"

# A copy to change, with builds of its own; files keep their times, so that cargo sees what has changed.
home=$PWD/target/mutants
tree=$home/tree
rm -rf "$tree"
mkdir -p "$tree"
# A file that was deleted and is not forgotten yet is no reason to stop.
git ls-files -z --cached --others --exclude-standard | { xargs -0 ls -d 2>/dev/null || true; } | tar -c -T - | tar -x -C "$tree"
export CARGO_TARGET_DIR=$home/build
state=$(cd "$tree" && find .cargo crates/windfall crates/windfall-base crates/windfall-btree crates/windfall-engine crates/windfall-sim Cargo.lock scripts/mutants.sh -type f -print0 | sort -z | xargs -0 sha256sum | sha256sum | cut -c 1-16)
out=$home/$state-$seed
mkdir -p "$out"
touch "$out/results"

mutants() {
    cargo mutants --dir "$tree" "${engine[@]}" "${engine[@]/#-p/--test-package}" "$@"
}

# The rules of the house look at the text of the code. Limits, kills and the bank, which is killed as well, take
# longest, and ask for more than such a change takes away.
targets=()
for test in "$tree"/crates/windfall/tests/*; do
    name=$(basename "$test" .rs)
    case $name in
        house_rules | public_items | limits | kill | bank) ;;
        *) [[ $test == *.rs || -e $test/main.rs ]] && targets+=(--test "$name") ;;
    esac
done

# timeout_of TESTS...: what a change may take, after these tests without one.
timeout_of() {
    local begin=$SECONDS
    (cd "$tree" && cargo test --quiet --profile mutants "${engine[@]}" "$@") >&2 ||
        fail "the tests fail without a change (see above): what they say of one means nothing"
    local timeout=$(((SECONDS - begin + 1) * patience))
    echo $((timeout > least_timeout ? timeout : least_timeout))
}

if [[ ! -s $out/baseline ]]; then
    say "the tests without a change"
    (cd "$tree" && cargo test --quiet --profile mutants "${engine[@]}" --lib "${targets[@]}" --no-run &&
        cargo test --quiet --profile mutants "${engine[@]}" "${models[@]}" --no-run)
    quick=$(timeout_of --lib -- "${skips[@]}")
    all=$(timeout_of --lib "${targets[@]}")
    (cd "$tree" && need_tests cargo test --quiet --profile mutants "${engine[@]}" "${models[@]}" -- interleavings::)
    model=$(timeout_of "${models[@]}" -- interleavings::)
    echo "$quick $all $model" >"$out/baseline"
fi
read -r quick_timeout all_timeout model_timeout <"$out/baseline"
say "a change may take $quick_timeout s with the quick tests, $all_timeout s with all, $model_timeout s with the models"
changes=$(mutants --list)
# A pattern that matches no file is no error for cargo-mutants: a folder that has moved would go unnoticed.
for folder in buffer log tablespace tree recovery; do
    grep -Eq "/src/(storage/)?$folder/" <<<"$changes" || fail "no change of $folder is listed: see .cargo/mutants.toml"
done
total=$(wc -l <<<"$changes")

# judge NUMBER TIMEOUT "ARGUMENTS..." TESTS...: one change, by these tests with these arguments. Says caught, missed,
# timeout or unviable. What is not linked is no fault of the change: what a build that was killed has left is thrown
# away, and it is made once more.
judge() {
    local number=$1 timeout=$2 arguments
    read -r -a arguments <<<"$3"
    shift 3
    rm -rf "$out/run"
    # What comes behind the first `--` it would give to the tests alone, and build them all.
    mutants --in-place --baseline skip --shard "$number/$total" --sharding round-robin --timeout "$timeout" \
        --output "$out/run" --no-times --colors never "${@/#/--cargo-arg=}" \
        -- -- -Z unstable-options --fail-fast "${arguments[@]}" >"$out/log" 2>&1 </dev/null || true
    local verdict
    for verdict in caught missed timeout unviable; do
        [[ -s $out/run/mutants.out/$verdict.txt ]] || continue
        if [[ $verdict == unviable && -z ${made_anew-} ]] &&
            grep -q 'linking with .* failed' -r "$out/run/mutants.out/log"; then
            rm -rf "$CARGO_TARGET_DIR/mutants/incremental"
            made_anew=yes judge "$number" "$timeout" "${arguments[*]}" "$@"
            return
        fi
        echo "$verdict"
        return
    done
    cat "$out/log" >&2
    return 1
}

count() {
    awk -v what="$1" '$2 ~ "^(" what ")$" { n++ } END { print n + 0 }' "$out/results"
}

end=$((SECONDS + seconds))
say "a sample of $sample of $total changes, seed $seed: $(count 'caught|missed|timeout') were made before"
while read -r number; do
    (($(count 'caught|missed|timeout') < sample)) || break
    if awk -v number="$number" '$1 == number { found = 1 } END { exit !found }' "$out/results"; then
        continue
    fi
    ((SECONDS < end)) || break
    begin=$SECONDS
    verdict=$(judge "$number" "$quick_timeout" "${skips[*]}" --lib)
    if [[ $verdict == missed ]]; then
        verdict=$(judge "$number" "$all_timeout" "" --lib "${targets[@]}")
    fi
    if [[ $verdict == missed ]]; then
        verdict=$(judge "$number" "$model_timeout" interleavings:: "${models[@]}")
    fi
    name=$(cat "$out/run/mutants.out/$verdict.txt")
    printf '%s %s %s\n' "$number" "$verdict" "$name" >>"$out/results"
    printf '%4d s  %-8s %s\n' $((SECONDS - begin)) "$verdict" "$name"
done < <(seq 0 $((total - 1)) | LC_ALL=C sort -R --random-source=<(yes "$seed"))

caught=$(count 'caught|timeout')
missed=$(count missed)
made=$((caught + missed))
say "$made of $sample changes made: $caught noticed ($(count timeout) by the time they took), $missed not; $(count unviable) more do not compile"
awk '$2 == "missed" { sub(/^[0-9]+ missed /, "  not noticed: "); print }' "$out/results"
if ((made < sample)); then
    say "$made of $sample changes made: not judged (call it again, and it goes on)"
elif ((caught * 100 < bound * made)); then
    fail "fewer than $bound of 100 changes are noticed"
fi
