# Translating a training set in parts, and binarising what was made of it; sourced by distill.sh and back_translate.sh, after
# common.sh. Reads their variables STRATEGY, BEAM, SHARDS, SHARD, BATCH, MAX_TOKENS, MAX_LEN_A, MAX_LEN_B, CPU, FP16, DATA, MONO and OUT.

STRATEGY=${STRATEGY:-AR} SHARDS=${SHARDS:-8} SHARD=${SHARD:-}
[[ $SHARDS =~ ^[1-9][0-9]*$ ]] || fail "SHARDS must be a number of parts, at least 1, not $SHARDS"
if [ -n "$SHARD" ] && ! { [[ $SHARD =~ ^[0-9]+$ ]] && [ "$SHARD" -lt "$SHARDS" ]; }; then
    fail "SHARD must be one of 0 ... $((SHARDS - 1)), not $SHARD"
fi
case $STRATEGY in
AR) BEAM=1 ;;
left2right | fairseq) BEAM=${BEAM:-5} ;;
*) fail "STRATEGY must be AR, left2right or fairseq, not $STRATEGY" ;;
esac
MAX_LEN_A=${MAX_LEN_A:-1.5} MAX_LEN_B=${MAX_LEN_B:-10}

# begin_translations TEXT MODEL [FLAG...]: OUT/shards, or an error if what is there is not this model's translation of this text
begin_translations() {
    mkdir -p "$OUT/shards" || fail "the folder for the data (OUT) $OUT can't be made"
    same_settings "$OUT/shards/settings" \
        "$(cksum < "$1") $(cksum < "$2") $(cat "$DATA/dict.$SRC.txt" "$DATA/dict.$TGT.txt" | cksum)
$SRC $TGT $STRATEGY $BEAM $MAX_LEN_A $MAX_LEN_B ${*:3}" \
        "$OUT/shards has translations of other text, by another model or with other options: remove it, or give another OUT"
}

# binarise_mono FROM TO: OUT/mono, the text MONO as the sources, in language FROM, of a training set for fairseq, with DATA's
# dictionaries; and OUT/mono.FROM, its lines. Several parts may begin at once, each in a process of its own.
binarise_mono() {
    local work lines
    [ ! -d "$OUT/mono" ] || return 0
    work=$(mktemp -d "$OUT/mono.XXXXXX")
    lines=$(python "$ROOT/scripts/source_lines.py" "$MONO" "$work/mono.$1")
    [ "$lines" -gt 0 ] || fail "the monolingual text (MONO) $MONO is empty"
    fairseq-preprocess --source-lang "$1" --target-lang "$2" --only-source --srcdict "$DATA/dict.$1.txt" \
        --trainpref "$work/mono" --destdir "$work/mono" > "$work/preprocess.txt" 2>&1 || {
        cp "$work/preprocess.txt" "$OUT/"
        fail "fairseq-preprocess failed; all of it in $OUT/preprocess.txt"
    }
    cp "$DATA/dict.$2.txt" "$work/mono/"
    mv "$work/mono.$1" "$OUT/mono.$1"
    mv -T "$work/mono" "$OUT/mono" 2> /dev/null || [ -d "$OUT/mono" ] || fail "$OUT/mono can't be made" # another was faster
    rm -rf "$work"
}

# translate_in_shards DATA SOURCE_LANG TARGET_LANG MODEL [FLAG...]: the training set of DATA; what fairseq-generate printed goes to
# OUT/shards/K-of-SHARDS.txt, and the number of sentences that are too long for the model to OUT/shards/skipped.
translate_in_shards() {
    local data=$1 shard flags shards=("$SHARD")
    flags=(--source-lang "$2" --target-lang "$3" --strategy "$STRATEGY" --beam "$BEAM" --path "$4" --gen-subset train
        --batch-size "${BATCH:-200}" --max-tokens "${MAX_TOKENS:-9000}" --num-workers 0
        --max-len-a "$MAX_LEN_A" --max-len-b "$MAX_LEN_B" --skip-invalid-size-inputs-valid-test)
    [ "${CPU:-0}" != 1 ] || flags+=(--cpu)
    [ "${FP16:-0}" != 1 ] || flags+=(--fp16)
    [ -n "$SHARD" ] || mapfile -t shards < <(seq 0 $((SHARDS - 1)))
    for shard in "${shards[@]}"; do
        translate_shard "$shard" "$data" "${flags[@]}" "${@:5}"
    done
}

translate_shard() { # SHARD DATA FLAG...
    local log=$OUT/shards/$1-of-$SHARDS.txt
    if [ -e "$log" ]; then
        echo "translated already: $log"
        return
    fi
    echo "translating part $(($1 + 1)) of $SHARDS"
    fairseq-generate "$2" --user-dir "$ROOT/block_plugins" --task translation_lev_modified "${@:3}" \
        --num-shards "$SHARDS" --shard-id "$1" > "$log.tmp" 2> "$log.errors" || is_empty_part "$log" || {
        tool_error "$log.tmp" "$log.errors" "fairseq-generate failed" >&2
        fail "part $1 of $SHARDS failed; all of it in $log.errors"
    }
    # fairseq says in each part how many sentences of the whole set are too long for the model; where, depends on whether
    # something has logged before its own logging is set up
    cat "$log.tmp" "$log.errors" | sed -n 's/,//g; s/^.*[ :]\([0-9][0-9]*\) samples have invalid sizes and will be skipped.*/\1/p' |
        sed -n 1p > "$OUT/shards/skipped"
    rm "$log.errors"
    mv "$log.tmp" "$log"
}

# is_empty_part LOG: where there are fewer batches than parts, fairseq ends with a division by the time that no batch took
is_empty_part() {
    grep -q '^ZeroDivisionError' "$1.errors" && ! grep -q '^S-' "$1.tmp"
}

# translate_mono SOURCE_LANG TARGET_LANG MODEL [FLAG...]: the text MONO, which is in the source language
translate_mono() {
    begin_translations "$MONO" "$3" "${@:4}"
    binarise_mono "$1" "$2"
    translate_in_shards "$OUT/mono" "$@"
}

# translations: TRANSLATIONS, what the scripts that read them are told: where they are, what isn't there, what is to be left out
translations() {
    local skipped
    skipped=$(cat "$OUT/shards/skipped")
    TRANSLATIONS=("$OUT/shards/"*"-of-$SHARDS.txt" --skipped "${skipped:-0}" --max-len-a "$MAX_LEN_A" --max-len-b "$MAX_LEN_B")
    [ "${FILTER:-1}" = 1 ] || TRANSLATIONS+=(--keep-degenerate)
}

# sentences_of PREFIX: how many there are in one side of a set that fairseq-preprocess wrote
sentences_of() {
    python -c 'import sys; from fairseq.data import indexed_dataset as data
print(len(data.make_dataset(sys.argv[1], "mmap")))' "$1" 2> /dev/null || fail "the training set $1 can't be read"
}

# binarise_with_sets_of DATA SRC_DICT TGT_DICT: OUT/bin from the text OUT/train.{SRC,TGT}, with DATA's validation and test sets
binarise_with_sets_of() {
    local file
    rm -rf "$OUT/bin.tmp"
    fairseq-preprocess --source-lang "$SRC" --target-lang "$TGT" --srcdict "$2" --tgtdict "$3" --trainpref "$OUT/train" \
        --destdir "$OUT/bin.tmp" > "$OUT/preprocess.txt" 2>&1 || fail "fairseq-preprocess failed; all of it in $OUT/preprocess.txt"
    for file in "$1"/valid*."$SRC-$TGT".* "$1"/test*."$SRC-$TGT".*; do
        [ ! -e "$file" ] || cp "$file" "$OUT/bin.tmp/"
    done
    rm -rf "$OUT/bin"
    mv "$OUT/bin.tmp" "$OUT/bin"
}
