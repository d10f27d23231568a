#!/usr/bin/env bash
# Mutation testing: the tests run against a random sample of the mutants that `cargo mutants` can make of the layers in
# .cargo/mutants.toml. Each mutant is tested with the fast unit tests first, with all tests if these pass, and with the
# models at last. The results are kept for this state of the code, so that the next call continues the sample.
set -euo pipefail
cd "$(dirname "$0")/.."
# shellcheck source=scripts/common.sh
source scripts/common.sh

mutants_version=27.1.0
# The minimum percentage of the viable mutants in a complete sample that must be caught.
bound=85
# A mutant counts as hanging, and so as caught, if the tests take this many times longer than without it.
patience=5
# The minimum timeout, in seconds, for tests that take almost no time.
least_timeout=30
# These take two thirds of the time of the unit tests. They run only if the others have not caught the mutant.
slow=(a_tree_that_is_emptied_in_any_order crash_points_during_the_freeing_of_long_chains
    readers_and_cursors_during_splits_and_merges a_crash_during_an_index_build_leaves rows_change_while_an_index_is_built
    every_crash_point_of_short_histories a_check_piece_of_a_large_tree_is_as_short a_long_value_may_go_while_it_is_looked_at)
skips=("${slow[@]/#/--skip=}")
engine=(-p windfall -p windfall-base -p windfall-btree -p windfall-engine)
models=(--lib --features model)
# `--fail-fast` is an unstable option of the test programs.
export RUSTC_BOOTSTRAP=1

seconds=${1:?usage: mutants.sh SECONDS [SEED [SAMPLE]]}
seed=${2:-1}
sample=${3:-200}

need_rust
need git git
need_tool cargo-mutants "$mutants_version"

# The mutants are made in a copy with its own builds. Files keep their times, so that cargo rebuilds only the changes.
home=$PWD/target/mutants
tree=$home/tree
rm -rf "$tree"
mkdir -p "$tree"
# `ls` fails for a deleted file that is still in the index; this is ignored.
git ls-files -z --cached --others --exclude-standard | { xargs -0 ls -d 2>/dev/null || true; } | tar -c -T - | tar -x -C "$tree"
export CARGO_TARGET_DIR=$home/build
state=$(cd "$tree" && find .cargo crates/windfall crates/windfall-base crates/windfall-btree crates/windfall-engine crates/windfall-sim Cargo.lock scripts/mutants.sh -type f -print0 | sort -z | xargs -0 sha256sum | sha256sum | cut -c 1-16)
out=$home/$state-$seed
mkdir -p "$out"
touch "$out/results"

mutants() {
    cargo mutants --dir "$tree" "${engine[@]}" "${engine[@]/#-p/--test-package}" "$@"
}

# `house_rules` and `public_items` check the text of the code. `limits`, `kill` and `bank` take longest, and are
# unlikely to catch a mutant that the other tests miss.
targets=()
for test in "$tree"/crates/windfall/tests/*; do
    name=$(basename "$test" .rs)
    case $name in
        house_rules | public_items | limits | kill | bank) ;;
        *) [[ $test == *.rs || -e $test/main.rs ]] && targets+=(--test "$name") ;;
    esac
done

# timeout_of TESTS...: runs these tests without a mutant and prints the timeout for one, in seconds.
timeout_of() {
    local begin=$SECONDS
    (cd "$tree" && cargo test --quiet --profile mutants "${engine[@]}" "$@") >&2 ||
        fail "the tests fail without a mutant (see above), so their results with one mean nothing"
    local timeout=$(((SECONDS - begin + 1) * patience))
    echo $((timeout > least_timeout ? timeout : least_timeout))
}

if [[ ! -s $out/baseline ]]; then
    say "running the tests without a mutant"
    (cd "$tree" && cargo test --quiet --profile mutants "${engine[@]}" --lib "${targets[@]}" --no-run &&
        cargo test --quiet --profile mutants "${engine[@]}" "${models[@]}" --no-run)
    quick=$(timeout_of --lib -- "${skips[@]}")
    all=$(timeout_of --lib "${targets[@]}")
    (cd "$tree" && need_tests cargo test --quiet --profile mutants "${engine[@]}" "${models[@]}" -- interleavings::)
    model=$(timeout_of "${models[@]}" -- interleavings::)
    echo "$quick $all $model" >"$out/baseline"
fi
read -r quick_timeout all_timeout model_timeout <"$out/baseline"
say "timeouts: $quick_timeout s for the fast tests, $all_timeout s for all, $model_timeout s for the models"
changes=$(mutants --list)
# cargo-mutants ignores a pattern that matches no file, so a folder that has moved would be left out silently.
for folder in buffer log tablespace tree recovery; do
    grep -Eq "/src/(storage/)?$folder/" <<<"$changes" || fail "there is no mutant of $folder: adapt .cargo/mutants.toml"
done
total=$(wc -l <<<"$changes")

# judge NUMBER TIMEOUT "ARGUMENTS..." TESTS...: tests one mutant with these tests and arguments. Prints caught, missed,
# timeout or unviable. A link error is not caused by the mutant but by files of a killed build: these are removed, and
# the mutant is tested again.
judge() {
    local number=$1 timeout=$2 arguments
    read -r -a arguments <<<"$3"
    shift 3
    rm -rf "$out/run"
    # Arguments after the first `--` apply to the test run only, and all tests would be built: hence `--cargo-arg`.
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
say "a sample of $sample of $total changes, seed $seed: $(count 'caught|missed|timeout') were tested before"
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
say "$made of $sample changes made: $caught caught ($(count timeout) by timeout), $missed missed; $(count unviable) more do not compile"
awk '$2 == "missed" { sub(/^[0-9]+ missed /, "  missed: "); print }' "$out/results"
if ((made < sample)); then
    say "$made of $sample changes made: the sample is incomplete (run this again to continue it)"
elif ((caught * 100 < bound * made)); then
    fail "fewer than $bound % of the mutants were caught"
fi
