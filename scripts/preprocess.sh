#!/usr/bin/env bash
# Raw parallel text -> tokenised, BPE-encoded and binarised data for fairseq.
#
#   scripts/preprocess.sh SRC TGT TEXT_DIR OUT_DIR
#
# TEXT_DIR holds {train,valid,test}.{SRC,TGT}, raw UTF-8 text, one segment a line. OUT_DIR receives
#   codes            the joint BPE codes, learnt on the training text (BPE_SYMBOLS merges, default 8000)
#   tok/, bpe/       the tokenised and the encoded text
#   bin/             what fairseq-train and fairseq-generate read, with one joined dictionary
# A step whose result is there is skipped; nothing half-written is left under a final name. Remove OUT_DIR to start afresh
# (after a change of the text or of BPE_SYMBOLS, for one).
# Environment: BPE_SYMBOLS, WORKERS (processes, default 2), TAGS (symbols that the dictionary has beyond the text's, for data to be
# made later: TAGS="<BT>" for scripts/back_translate.sh), PYTHON_BIN (folder with the commands; default: the active environment,
# else .venv).
set -euo pipefail

ROOT=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
# shellcheck source=scripts/common.sh
source "$ROOT/scripts/common.sh"

if [ $# -ne 4 ]; then
    usage >&2
    exit 2
fi
SRC=$1 TGT=$2 TEXT=$3 OUT=$4
BPE_SYMBOLS=${BPE_SYMBOLS:-8000}
WORKERS=${WORKERS:-2}
trap 'echo "preprocess.sh: interrupted; the same command goes on from here" >&2; exit 130' INT

need_folder "$TEXT" "the folder with the text,"
for split in train valid test; do
    for lang in "$SRC" "$TGT"; do
        [ -s "$TEXT/$split.$lang" ] || fail "$TEXT/$split.$lang is missing or empty"
    done
    [ "$(wc -l < "$TEXT/$split.$SRC")" -eq "$(wc -l < "$TEXT/$split.$TGT")" ] ||
        fail "$TEXT/$split.$SRC and $split.$TGT differ in their number of lines"
done
for command in sacremoses subword-nmt fairseq-preprocess; do
    need_fairseq "$command"
done

mkdir -p "$OUT/tok" "$OUT/bpe"

for split in train valid test; do
    for lang in "$SRC" "$TGT"; do
        [ ! -e "$OUT/tok/$split.$lang" ] || continue
        echo "tokenising $split.$lang"
        tokenise "$lang" < "$TEXT/$split.$lang" > "$OUT/tok/$split.$lang.tmp"
        # sacremoses takes a carriage return for the end of a line
        [ "$(wc -l < "$TEXT/$split.$lang")" -eq "$(wc -l < "$OUT/tok/$split.$lang.tmp")" ] ||
            fail "$TEXT/$split.$lang: the tokeniser sees another number of lines; remove carriage returns, end the last line"
        mv "$OUT/tok/$split.$lang.tmp" "$OUT/tok/$split.$lang"
    done
done

if [ ! -e "$OUT/codes" ]; then
    echo "learning $BPE_SYMBOLS BPE merges"
    cat "$OUT/tok/train.$SRC" "$OUT/tok/train.$TGT" | subword-nmt learn-bpe -s "$BPE_SYMBOLS" > "$OUT/codes.tmp"
    mv "$OUT/codes.tmp" "$OUT/codes"
fi

for split in train valid test; do
    for lang in "$SRC" "$TGT"; do
        [ ! -e "$OUT/bpe/$split.$lang" ] || continue
        echo "encoding $split.$lang"
        subword-nmt apply-bpe -c "$OUT/codes" < "$OUT/tok/$split.$lang" > "$OUT/bpe/$split.$lang.tmp"
        mv "$OUT/bpe/$split.$lang.tmp" "$OUT/bpe/$split.$lang"
    done
done

if [ ! -e "$OUT/bin" ]; then
    echo "binarising"
    rm -rf "$OUT/bin.tmp"
    fairseq-preprocess --source-lang "$SRC" --target-lang "$TGT" --joined-dictionary \
        --trainpref "$OUT/bpe/train" --validpref "$OUT/bpe/valid" --testpref "$OUT/bpe/test" \
        --destdir "$OUT/bin.tmp" --workers "$WORKERS"
    for tag in ${TAGS:-}; do
        for lang in "$SRC" "$TGT"; do
            add_symbol "$tag" "$OUT/bin.tmp/dict.$lang.txt"
        done
    done
    mv "$OUT/bin.tmp" "$OUT/bin"
fi
echo "data for fairseq: $OUT/bin"
