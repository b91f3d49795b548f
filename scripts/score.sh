#!/usr/bin/env bash
# Scores translations in four ways, side by side: tokenised BLEU, compound-split BLEU, and sacreBLEU and chrF of detokenised text,
# each with its signature and with what it may be compared with.
#
#   scripts/score.sh [OPTION ...] HYPOTHESES REFERENCE
#   scripts/score.sh [OPTION ...] GENERATE_OUTPUT
#
# HYPOTHESES and REFERENCE are tokenised text, line by line, compound-split (ref.sh) or not. GENERATE_OUTPUT is what
# fairseq-generate printed: its H and T lines are taken in input order, also where it stands for one of the two files.
#
#   --raw-reference FILE   the reference as it was before tokenisation, for the last two scores. Without it the tokenised one is
#                          detokenised, and these scores are not those that others get against the raw one.
#   --lang LANGUAGE        target language, for detokenisation (default: the one that fairseq-generate logged, else the ending of
#                          REFERENCE or HYPOTHESES, as in test.de)
#   --remove-bpe           joins subwords ("@@ ") on both sides first, as fairseq-generate's option of this name does
set -euo pipefail
ROOT=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
. "$ROOT/scripts/common.sh"

help_if_asked "$@"
RAW="" LANGUAGE="" REMOVE_BPE=0 FILES=()
while [ $# -gt 0 ]; do
    case $1 in
    --raw-reference | --lang)
        [ $# -gt 1 ] || fail "$1 needs a value"
        if [ "$1" = --lang ]; then LANGUAGE=$2; else RAW=$2; fi
        shift
        ;;
    --remove-bpe) REMOVE_BPE=1 ;;
    -*) fail "$1 is none of --raw-reference, --lang and --remove-bpe" ;;
    *) FILES+=("$1") ;;
    esac
    shift
done
if [ ${#FILES[@]} -ne 1 ] && [ ${#FILES[@]} -ne 2 ]; then
    usage >&2
    exit 2
fi
SYS=${FILES[0]} REF=${FILES[${#FILES[@]} - 1]}
need_text H "$SYS" "the hypotheses"
[ ${#FILES[@]} -eq 2 ] || is_generate_log "$SYS" || fail "$SYS holds neither H nor T lines: give a reference as well"
need_text T "$REF" "the reference"
[ -z "$RAW" ] || need_file "$RAW" "the raw reference"
need_fairseq fairseq-score

# Of the two dictionaries that fairseq reports, the second is the target language's.
for file in "$REF" "$SYS"; do
    [ -n "$LANGUAGE" ] || LANGUAGE=$(LC_ALL=C sed -n 's/^.*INFO.*\[\([^]]*\)\] dictionary: .* types$/\1/p' "$file" | sed -n 2p)
done
for file in "$REF" "$SYS"; do
    [ -n "$LANGUAGE" ] || LANGUAGE=$(basename "$file" | sed -n 's/^.*\.\([a-z][a-z]\)$/\1/p')
done
[ -n "$LANGUAGE" ] || fail "the target language is told by neither log nor file name: give it with --lang"
[[ $LANGUAGE =~ ^[a-z]{2,3}$ ]] || fail "the target language must be a code such as de, not $LANGUAGE: give it with --lang"
if LC_ALL=C grep -q "INFO.*'tokenizer': {" "$REF"; then
    fail "the T lines of $REF are detokenised already: leave --tokenizer out when decoding, or give a tokenised REFERENCE"
fi

WORK=$(mktemp -d)
trap 'rm -rf "$WORK"' EXIT

# plain LETTER FILE: tokenised text, whole words, compounds not split.
plain() {
    text_of "$1" "$2" | sed 's/ ##AT##-##AT## /-/g' |
        if [ "$REMOVE_BPE" = 1 ]; then sed 's/@@ //g; s/@@$//'; else cat; fi
}
plain H "$SYS" > "$WORK/sys"
plain T "$REF" > "$WORK/ref"
NAMES="$SYS and $REF"
[ ${#FILES[@]} -eq 2 ] || NAMES="the H and T lines of $SYS"
need_equal_lengths "$WORK/sys" "$WORK/ref" "$NAMES"
for file in sys ref; do
    SUBWORD=$(grep -a -m 1 -o '[^ ]*@@ [^ ]*' "$WORK/$file" | sed -n 1p || true)
    [ -z "$SUBWORD" ] || fail "$NAMES hold subwords ($SUBWORD), whose scores compare with nothing: give --remove-bpe"
    compound_split < "$WORK/$file" > "$WORK/$file.split"
done
if [ -n "$RAW" ]; then
    need_equal_lengths "$WORK/sys" "$RAW" "$SYS and $RAW"
    cat "$RAW" > "$WORK/raw"
fi
python "$ROOT/scripts/score_table.py" "$WORK" "$LANGUAGE"

# What makes the scores of a log others than they seem.
note() {
    echo "note: $*"
}
if is_generate_log "$SYS"; then
    LAST=$(LC_ALL=C sed -n 's/^H-\([0-9][0-9]*\)	.*/\1/p' "$SYS" | sort -n | tail -n 1)
    MISSING=$((LAST + 1 - $(grep -c '' "$WORK/sys")))
    [ "$MISSING" -eq 0 ] || note "$MISSING of the $((LAST + 1)) sentences up to the last one aren't in $SYS, so they aren't scored"
fi
if is_generate_log "$REF"; then
    UNKNOWN=$(grep -a -o '<<unk>>' "$WORK/ref" | grep -c '' || true)
    [ "$UNKNOWN" -eq 0 ] || note "the T lines of $REF hold $UNKNOWN unknown words, which nothing matches: give REFERENCE as text"
    LC_ALL=C grep -q '^Generate .* with beam=' "$REF" || note "the last line of fairseq-generate isn't in $REF: it may have been interrupted"
fi
