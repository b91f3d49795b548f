#!/usr/bin/env bash
# Back-translation (Sennrich et al. 2016): monolingual target text with the translations that a backward model makes of it as its
# source. What the model isn't sure of is dropped; the rest is tagged (Caswell et al. 2019) and mixed with genuine parallel text.
#
#   DATA=bin SRC=en TGT=de MODEL=backward.pt MONO=mono.bpe.de PARALLEL=bpe/train OUT=bt scripts/back_translate.sh [flags ...]
#
# flags are fairseq-generate's: --sampling --seed 1, for one, draws translations instead of searching for the best (Edunov et al.
# 2018), which teaches more where there is much text; their confidence is lower.
#
# DATA       folder with the dictionaries (dict.SRC.txt, dict.TGT.txt) of the backward model; its validation and test sets
#            SRC-TGT, if it has any, go with the data made here
# SRC, TGT   languages of the pairs to make (en, de)
# MODEL      checkpoint of the backward model, which translates TGT to SRC
# MONO       text in TGT, one sentence a line, BPE-encoded with the codes that go with DATA
# PARALLEL   prefix of the genuine text, encoded likewise: PARALLEL.SRC and PARALLEL.TGT
# OUT        folder: shards/ (what fairseq-generate printed), train.SRC and train.TGT (BPE: genuine and pseudo pairs, shuffled),
#            dict.SRC.txt and dict.TGT.txt (with the tag), bin/ (data for train.sh), report.txt
# TAG        symbol in front of each pseudo source (<BT>). BPE never sees it, since it is put in front of encoded text. Where DATA's
#            dictionary lacks it, it becomes the last symbol of those in OUT, and models of DATA's dictionaries can't be trained
#            further on them; TAGS="<BT>" scripts/preprocess.sh makes dictionaries that have it from the start.
# CONFIDENCE pairs below it are dropped (0.3; 0 keeps all): the geometric mean of the probabilities that the model gave the tokens of
#            its translation, EOS among them. That is 2 to the mean of fairseq's P line, whose logarithms have base 2.
# RATIO      pseudo pairs for each genuine one (1), drawn at random from what is left; never more than there are, none twice
# SEED       of drawing and shuffling (1)
# STRATEGY   AR (default: greedy), left2right or fairseq;  BEAM  beams of these two (5)
# SHARDS, SHARD, BATCH, MAX_TOKENS, MAX_LEN_A, MAX_LEN_B, FILTER, CPU, FP16, PYTHON_BIN   as for distill.sh
#
# An interrupted run goes on with the first part that isn't there; TAG, CONFIDENCE, RATIO, SEED and PARALLEL can be changed afterwards
# without translating anew.
set -euo pipefail
ROOT=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
. "$ROOT/scripts/common.sh"

help_if_asked "$@"

need DATA "the folder with the dictionaries"
need MODEL "the backward model's checkpoint"
need MONO "the BPE-encoded text in the target language"
need PARALLEL "the prefix of the genuine text"
need OUT "the folder for the data"
SRC=${SRC:-en} TGT=${TGT:-de} TAG=${TAG:-<BT>} CONFIDENCE=${CONFIDENCE:-0.3} RATIO=${RATIO:-1} SEED=${SEED:-1}
need_file "$DATA/dict.$SRC.txt" "the dictionary of DATA"
need_file "$DATA/dict.$TGT.txt" "the dictionary of DATA"
need_file "$MODEL" "the backward model (MODEL)"
need_file "$MONO" "the monolingual text (MONO)"
need_file "$PARALLEL.$SRC" "the genuine text (PARALLEL)"
need_file "$PARALLEL.$TGT" "the genuine text (PARALLEL)"
case $TAG in
*[[:space:]]* | '<s>' | '</s>' | '<pad>' | '<unk>') fail "TAG must be one symbol that fairseq has no use for, not $TAG" ;;
esac
is_positive "$RATIO" || fail "RATIO must be a number of pseudo pairs for a genuine one, above 0, not $RATIO"
{ is_decimal "$CONFIDENCE" && awk -v x="$CONFIDENCE" 'BEGIN { exit !(x <= 1) }'; } ||
    fail "CONFIDENCE must be a probability, 0 ... 1, not $CONFIDENCE"
[[ $SEED =~ ^[0-9]+$ ]] || fail "SEED must be a whole number, not $SEED"
. "$ROOT/scripts/shards.sh"
for command in python fairseq-preprocess fairseq-generate; do
    need_fairseq "$command"
done
trap 'echo "back_translate.sh: interrupted; the same command goes on from here" >&2; exit 130' INT
translate_mono "$TGT" "$SRC" "$MODEL" "$@"
[ -z "$SHARD" ] || exit 0

SETTINGS="$(cat "$OUT/shards/settings")
$(cat "$PARALLEL.$SRC" "$PARALLEL.$TGT" | cksum) $TAG $CONFIDENCE $RATIO $SEED ${FILTER:-1} $SHARDS"
if [ ! -d "$OUT/bin" ] || [ "$(cat "$OUT/settings" 2> /dev/null)" != "$SETTINGS" ]; then
    rm -f "$OUT/settings"
    translations
    python "$ROOT/scripts/back_translated_text.py" "${TRANSLATIONS[@]}" --mono "$OUT/mono.$TGT" --confidence "$CONFIDENCE" --tag "$TAG" \
        --genuine "$PARALLEL.$SRC" "$PARALLEL.$TGT" --ratio "$RATIO" --seed "$SEED" --out "$OUT/train.$SRC" "$OUT/train.$TGT" |
        tee "$OUT/report.txt"
    cp "$DATA/dict.$SRC.txt" "$DATA/dict.$TGT.txt" "$OUT/"
    if ! has_symbol "$TAG" "$OUT/dict.$SRC.txt"; then
        echo "$DATA/dict.$SRC.txt lacks $TAG: it is the last symbol of $OUT/dict.$SRC.txt; models of the old dictionary don't fit"
        # a joined dictionary stays one
        ! cmp -s "$OUT/dict.$SRC.txt" "$OUT/dict.$TGT.txt" || add_symbol "$TAG" "$OUT/dict.$TGT.txt"
        add_symbol "$TAG" "$OUT/dict.$SRC.txt"
    fi
    binarise_with_sets_of "$DATA" "$OUT/dict.$SRC.txt" "$OUT/dict.$TGT.txt"
    printf '%s\n' "$SETTINGS" > "$OUT/settings"
fi
echo "data for train.sh: $OUT/bin"
