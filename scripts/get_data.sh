#!/usr/bin/env bash
# Public corpora -> binarised data for fairseq, with the dictionaries of the published models.
#
#   scripts/get_data.sh {wmt14.en-de,wmt16.en-ro} [--new-dict]
#
# wmt14.en-de  Europarl 7, Common Crawl and News Commentary, every 100th pair for validation, newstest2014 for testing; training and
#              validation pairs of unequal length (ratio 1.5) or of more than 250 subwords are left out. As in fairseq's recipe
#              prepare-wmt14en2de.sh, but tokenised as the published dictionary was made, and encoded with the published BPE codes.
# wmt16.en-ro  the text of Lee et al. (2018), which Mask-Predict and the published models use; it comes tokenised and encoded
# --new-dict   a dictionary of one's own, joined for both languages. For wmt14.en-de with the recipe's tokenisation (punctuation
#              normalised, dashes split) and BPE codes of one's own, unless CODES_URL is given.
#
# OUT          folder (data/PAIR in the checkout): archives/, raw/, codes, dict.LANG.txt, tok/, bpe/, bin/; with --new-dict all that
#              differs in OUT/new-dict. data/README.md tells more, sizes and licences among it.
# EUROPARL_URL, COMMONCRAWL_URL, NEWS_COMMENTARY_URL, NEWSTEST_URL, CODES_URL, DICT_EN_URL, DICT_DE_URL, DICT_RO_URL, ENRO_URL
#              other addresses of the sources, file:// ones among them; NAME_SHA256 with each: its checksum
# BPE_SYMBOLS  merges of BPE codes of one's own (40000)
# WORKERS      processes (all processors)
# TRIES        of a download that breaks off (5)
# PYTHON_BIN   folder with fairseq's commands (default: the active environment, else .venv)
#
# Downloads are resumed, and steps whose result is there are skipped; nothing half-written has a final name. Remove the folders of a
# step, and of those after it, to do it again.
set -euo pipefail
ROOT=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
. "$ROOT/scripts/common.sh"

help_if_asked "$@"
NEW_DICT=0 PAIR=
for argument in "$@"; do
    case $argument in
    --new-dict) NEW_DICT=1 ;;
    -*) fail "there is no option $argument; --help tells which there are" ;;
    *)
        [ -z "$PAIR" ] || fail "one data set at a time, not $PAIR and $argument"
        PAIR=$argument
        ;;
    esac
done
case $PAIR in
wmt14.en-de | wmt16.en-ro) ;;
'')
    usage >&2
    exit 2
    ;;
*) fail "the data set must be wmt14.en-de or wmt16.en-ro, not $PAIR" ;;
esac
SRC=${PAIR#*.} SRC=${SRC%-*} TGT=${PAIR#*-}
OUT=${OUT:-$ROOT/data/$PAIR}
WORKERS=${WORKERS:-$(nproc)} BPE_SYMBOLS=${BPE_SYMBOLS:-40000}
[[ $WORKERS =~ ^[1-9][0-9]*$ ]] || fail "WORKERS must be a number of processes, at least 1, not $WORKERS"
[[ $BPE_SYMBOLS =~ ^[1-9][0-9]*$ ]] || fail "BPE_SYMBOLS must be a number of merges, at least 1, not $BPE_SYMBOLS"

. "$ROOT/scripts/fetch.sh"
need_tools
for command in python subword-nmt fairseq-preprocess; do
    need_fairseq "$command"
done
WORK=$OUT
[ "$NEW_DICT" = 0 ] || WORK=$OUT/new-dict
mkdir -p "$OUT/archives" "$WORK/bpe" 2> "$MESSAGES" || fail "the folder OUT can't be made: $(reason)"
trap 'echo "get_data.sh: interrupted; the same command goes on from here" >&2; exit 130' INT

# step WHAT COMMAND...: what the command prints is shown only where it fails.
step() {
    echo "$1"
    "${@:2}" > "$MESSAGES" 2>&1 || fail "$1: $(reason)"
}

# take_out ARCHIVE SRC_MEMBER TGT_MEMBER PREFIX [FILTER]: the two members as PREFIX.SRC and PREFIX.TGT
take_out() {
    local archive=$OUT/archives/$1 lang member
    [ ! -e "$4.$SRC" ] || [ ! -e "$4.$TGT" ] || return 0
    mkdir -p "$(dirname "$4")"
    echo "unpacking $2 and $3"
    for lang in "$SRC" "$TGT"; do
        member=$2
        [ "$lang" = "$SRC" ] || member=$3
        : > "$MESSAGES"
        tar -xzOf "$archive" --wildcards --no-anchored "$member" 2>> "$MESSAGES" | "${5:-cat}" 2>> "$MESSAGES" > "$4.$lang.part" ||
            fail "$member of $archive can't be unpacked: $(first_reason)"
        [ -s "$4.$lang.part" ] || fail "$member of $archive is empty"
    done
    same_lines "$4.$SRC.part" "$4.$TGT.part" "$2 and $3 of $archive"
    mv "$4.$SRC.part" "$4.$SRC"
    mv "$4.$TGT.part" "$4.$TGT"
}

# The text of the segments of an .sgm file, a line each, with straight apostrophes, as in the recipe.
segments() {
    sed -nE 's/^.*<seg [^>]*>[[:space:]]*(.*)<\/seg>.*$/\1/p' |
        sed -e "s/’/'/g; s/&apos;/'/g" -e 's/&lt;/</g; s/&gt;/>/g; s/&quot;/"/g; s/&amp;/\&/g'
}

# A carriage return would be the end of a line for fairseq-preprocess.
no_carriage_returns() {
    tr '\r' ' '
}

# tokenise SPLIT LANG INPUT...: tok/SPLIT.LANG; of train, every 100th line goes to tok/valid.LANG
tokenise() {
    local out=$WORK/tok/$1.$2 flags=()
    [ "$1" != train ] || flags+=(--held-out "$WORK/tok/valid.$2.part")
    [ "$1" != train ] || [ "$NEW_DICT" = 0 ] || flags+=(--normalise)
    [ "$NEW_DICT" = 0 ] || flags+=(--split-dashes)
    [ ! -e "$out" ] || return 0
    mkdir -p "$WORK/tok"
    step "tokenising $1.$2" python "$ROOT/scripts/wmt_text.py" tokenise "$2" "${@:3}" --out "$out.part" --workers "$WORKERS" "${flags[@]}"
    [ "$1" != train ] || mv "$WORK/tok/valid.$2.part" "$WORK/tok/valid.$2"
    mv "$out.part" "$out"
}

learn_codes() {
    cat "$WORK/tok/train.$SRC" "$WORK/tok/train.$TGT" | subword-nmt learn-bpe -s "$BPE_SYMBOLS" > "$WORK/codes.part"
}

encode() { # SPLIT [FLAG]
    local tok=$WORK/tok/$1 out=$WORK/bpe/$1
    [ ! -e "$out.$SRC" ] || [ ! -e "$out.$TGT" ] || return 0
    step "encoding $1" python "$ROOT/scripts/wmt_text.py" encode "$CODES" "$tok.$SRC" "$tok.$TGT" "$out.$SRC.part" "$out.$TGT.part" \
        --workers "$WORKERS" "${@:2}"
    cat "$MESSAGES"
    [ -s "$out.$SRC.part" ] || fail "no pair of $tok.$SRC and $tok.$TGT is left; training and validation need some"
    same_lines "$out.$SRC.part" "$out.$TGT.part" "$out.$SRC.part and $out.$TGT.part"
    mv "$out.$SRC.part" "$out.$SRC"
    mv "$out.$TGT.part" "$out.$TGT"
}

wmt14() {
    local statmt=http://statmt.org lang corpus
    source_is EUROPARL "$statmt/wmt13/training-parallel-europarl-v7.tgz" \
        0224c7c710c8a063dfd893b0cc0830202d61f4c75c17eb8e31836103d27d96e7
    source_is COMMONCRAWL "$statmt/wmt13/training-parallel-commoncrawl.tgz" \
        c7a74e2ea01ac6c920123108627e35278d4ccb5701e15428ffa34de86fa3a9e5
    source_is NEWS_COMMENTARY http://data.statmt.org/wmt17/translation-task/training-parallel-nc-v12.tgz \
        2b45f30ef1d550d302fd17dd3a5cbe19134ccc4c2cf50c2dae534aee600101a2
    source_is NEWSTEST "$statmt/wmt14/test-full.tgz" a8cd784e006feb32ac6f3d9ec7eb389a

    CODES=$WORK/codes
    [ "$NEW_DICT" = 0 ] || [ -z "${CODES_URL:-}" ] || fetch CODES "$CODES" codes
    fetch EUROPARL "$OUT/archives/europarl.tgz" archive
    fetch COMMONCRAWL "$OUT/archives/commoncrawl.tgz" archive
    fetch NEWS_COMMENTARY "$OUT/archives/news-commentary.tgz" archive
    fetch NEWSTEST "$OUT/archives/newstest.tgz" archive

    take_out europarl.tgz training/europarl-v7.de-en.{en,de} "$OUT/raw/europarl"
    take_out commoncrawl.tgz commoncrawl.de-en.{en,de} "$OUT/raw/commoncrawl"
    take_out news-commentary.tgz 'training/news-commentary-v*.de-en.'{en,de} "$OUT/raw/news-commentary"
    take_out newstest.tgz test-full/newstest2014-deen-{src.en,ref.de}.sgm "$OUT/raw/newstest" segments
    for lang in "$SRC" "$TGT"; do
        tokenise train "$lang" "$OUT/raw/"{europarl,commoncrawl,news-commentary}".$lang"
        tokenise test "$lang" "$OUT/raw/newstest.$lang"
    done
    for corpus in train valid test; do
        same_lines "$WORK/tok/$corpus.$SRC" "$WORK/tok/$corpus.$TGT" "$WORK/tok/$corpus.$SRC and $corpus.$TGT"
    done

    if [ ! -e "$CODES" ]; then
        step "learning $BPE_SYMBOLS BPE merges" learn_codes
        mv "$CODES.part" "$CODES"
    fi
    encode train --clean
    encode valid --clean
    encode test
}

wmt16() {
    local split
    source_is ENRO 'https://drive.google.com/uc?id=1YrAwCEuktG-iDVxtEW-FE72uFTLc5QMl'
    fetch ENRO "$OUT/archives/wmt16.tar.gz" archive
    for split in train/corpus:train dev/dev:valid test/test:test; do
        take_out wmt16.tar.gz "wmt16/en-ro/${split%:*}.bpe."{en,ro} "$WORK/bpe/${split#*:}" no_carriage_returns
    done
    CODES=$OUT/archives/wmt16.tar.gz
}

binarise() {
    local dictionaries=$OUT flags=(--srcdict "$OUT/dict.$SRC.txt" --tgtdict "$OUT/dict.$TGT.txt")
    [ "$NEW_DICT" = 0 ] || dictionaries=$WORK/bin flags=(--joined-dictionary)
    rm -rf "$WORK/bin.part"
    step "binarising" fairseq-preprocess --source-lang "$SRC" --target-lang "$TGT" "${flags[@]}" --trainpref "$WORK/bpe/train" \
        --validpref "$WORK/bpe/valid" --testpref "$WORK/bpe/test" --destdir "$WORK/bin.part" --workers "$WORKERS"
    # fairseq tells the share of unknown symbols of each file
    sed -nE 's/^.*\[([a-z]+)\] (.*): [0-9]+ sents, [0-9]+ tokens, ([^ ]+)% replaced.*$/\1 \3 \2/p' "$MESSAGES" |
        while read -r lang rate file; do
            awk -v rate="$rate" 'BEGIN { exit !(rate > 1) }' || continue
            echo "warning: $rate % of the symbols of $file are unknown: the BPE codes and the dictionary don't belong together" \
                "($CODES, $dictionaries/dict.$lang.txt)" >&2
        done
    mv "$WORK/bin.part" "$WORK/bin"
}

[ "$NEW_DICT" = 1 ] || fetch_vocabulary "$PAIR" "$OUT"
"${PAIR%%.*}"
[ -e "$WORK/bin" ] || binarise
echo "data for fairseq: $WORK/bin"
