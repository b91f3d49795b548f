# What the shell scripts share; sourced by them, after ROOT (the checkout) is set.

# The commands come from PYTHON_BIN if it is set, from the active environment, or else from the checkout's own.
if [ -n "${PYTHON_BIN:-}" ]; then
    PATH=$PYTHON_BIN:$PATH
elif ! command -v fairseq-train > /dev/null && [ -d "$ROOT/.venv/bin" ]; then
    PATH=$ROOT/.venv/bin:$PATH
fi

# One readable line, then the end.
fail() {
    echo "error: $*" >&2
    exit 1
}

# The comment at the top of the calling script, as its help.
usage() {
    awk 'NR > 1 && !/^#/ { exit } NR > 1 { sub(/^# ?/, ""); print }' "$0"
}

# help_if_asked "$@": with -h or --help first, the help is all there is.
help_if_asked() {
    case ${1:-} in -h | --help)
        usage
        exit 0
        ;;
    esac
}

# need VARIABLE MEANING: the variable must be set.
need() {
    [ -n "${!1:-}" ] || fail "$1 is not set: $2"
}

# need_file FILE MEANING / need_folder FOLDER MEANING
need_file() {
    [ -f "$1" ] || fail "$2 $1 does not exist"
    [ -r "$1" ] || fail "$2 $1 can't be read"
}
need_folder() {
    [ -d "$1" ] || fail "$2 $1 does not exist"
}

need_fairseq() {
    command -v "$1" > /dev/null || fail "$1 is not on the PATH: run make setup, or name its folder with PYTHON_BIN"
}

# Standard input with the hyphens inside of words split off, as in the evaluation of Vaswani et al. (2017).
compound_split() {
    perl -C0 -pe 's{(\S)-(\S)}{$1 ##AT##-##AT## $2}g'
}

# generate_lines LETTER LOG: the text of fairseq-generate's T (reference) or H (hypothesis) lines in input order, the best
# hypothesis only.
generate_lines() {
    local field=2
    [ "$1" = T ] || field=3
    LC_ALL=C sed -n "s/^$1-\\([0-9][0-9]*\\)\\(	.*\\)/\\1\\2/p" "$2" | LC_ALL=C sort -s -u -n -k1,1 | cut -f "$field-"
}
is_generate_log() {
    LC_ALL=C grep -q '^[HT]-[0-9][0-9]*	' "$1"
}

# need_text LETTER FILE MEANING: the file must exist, and hold lines of that letter if it is fairseq-generate's output.
need_text() {
    need_file "$2" "$3"
    ! is_generate_log "$2" || LC_ALL=C grep -q "^$1-[0-9]" "$2" || fail "$3 $2 is fairseq's output without $1 lines"
}
# text_of LETTER FILE: the lines of a text, or of fairseq-generate's output those of that letter.
text_of() {
    if is_generate_log "$2"; then generate_lines "$1" "$2"; else cat "$2"; fi
}
# The same, compound-split. A text that is split already passes unchanged: splitting "a-b-c" again would go beyond what
# published references hold.
split_text_of() {
    if ! is_generate_log "$2" && grep -qF '##AT##-##AT##' "$2"; then cat "$2"; else text_of "$1" "$2" | compound_split; fi
}

# is_decimal TEXT: a number without sign and exponent
is_decimal() {
    [[ $1 =~ ^([0-9]+\.?[0-9]*|\.[0-9]+)$ ]]
}
# is_positive TEXT: such a number above 0
is_positive() {
    is_decimal "$1" && [[ $1 =~ [1-9] ]]
}

# preprocess_text SRC TGT TEXT_DIR OUT_DIR LOG: scripts/preprocess.sh, of which nothing is seen unless it fails
preprocess_text() {
    PYTHON_BIN="" "$ROOT/scripts/preprocess.sh" "${@:1:4}" > "$5" 2>&1 || {
        tail -n 5 "$5" >&2
        fail "preprocessing failed; all of it in $5"
    }
}

# train_with_progress NAME UPDATES FOLDER COMMAND ...: a training, in short lines; marks the end in the folder
train_with_progress() {
    "${@:4}" 2>&1 | tee -a "$3/train.log" | python "$ROOT/scripts/training_progress.py" "$1" "$2" ||
        fail "training failed; all of it in $3/train.log"
    touch "$3/done-$2"
}

# same_lines FILE OTHER NAMES: both must have as many lines.
same_lines() {
    local lines others
    lines=$(grep -c '' "$1" || true)
    others=$(grep -c '' "$2" || true)
    [ "$lines" -eq "$others" ] || fail "$3 differ in their number of lines: $lines and $others"
}
# The same, and there must be some. Scorers stop at the end of the shorter file and say nothing.
need_equal_lengths() {
    same_lines "$@"
    [ -s "$1" ] || fail "$3 are empty"
}

# Results of other text or of other settings are not to be taken for these.
# same_settings FILE LINE ADVICE: the file has this line, or gets it
same_settings() {
    if [ ! -e "$1" ]; then
        printf '%s\n' "$2" > "$1.$$"
        mv "$1.$$" "$1"
    fi
    [ "$(cat "$1")" = "$2" ] || fail "$3"
}

# need_batch VARIABLE: a number of sentences
need_batch() {
    [[ ${!1} =~ ^[1-9][0-9]*$ ]] || fail "$1 must be a number of sentences, at least 1, not ${!1}"
}

# tokenise LANGUAGE: raw text -> tokens, line by line, as all of the project's text is prepared
tokenise() {
    sacremoses -q -l "$1" -j "${WORKERS:-2}" tokenize
}

# need_models: DATA, CODES, VERIFIER and DRAFTER, as they are given or, without any of them, the bundled pair with what it decodes
# fastest with.
BUNDLED=$ROOT/checkpoints/demo.en-de
need_models() {
    if [ -z "${DATA:-}${CODES:-}${VERIFIER:-}${DRAFTER:-}" ]; then
        [ "$SRC-$TGT" = en-de ] || fail "the bundled pair translates en into de, not $SRC into $TGT: give DATA, CODES, VERIFIER and DRAFTER"
        DATA=$BUNDLED CODES=$BUNDLED/codes VERIFIER=$BUNDLED/verifier.pt DRAFTER=$BUNDLED/drafter.pt
        CPU=${CPU:-1}
        if [ "${STRATEGY:-gad}" = gad ]; then
            DRAFT_TOKENS=${DRAFT_TOKENS:-12}
            [ "$CPU" != 1 ] || DRAFTER_DTYPE=${DRAFTER_DTYPE:-int8}
        fi
    fi
    need DATA "the folder with the dictionaries"
    need CODES "the BPE codes"
    need_folder "$DATA" "the folder with the dictionaries (DATA)"
    need_file "$CODES" "the file with the BPE codes (CODES)"
}

# decoding_flags: FLAGS, what the variables that inference.sh describes (from DRAFTER on) mean to fairseq's tools.
decoding_flags() {
    # one process, also where there are several GPUs
    FLAGS=(--distributed-world-size 1 --strategy "$STRATEGY" --block-size "${BLOCK:-25}")
    case $STRATEGY in
    gad | drafter)
        need DRAFTER "the drafter's checkpoint"
        need_file "$DRAFTER" "the drafter (DRAFTER)"
        FLAGS+=(--path "$DRAFTER")
        ;;&
    gad | AR | left2right | fairseq)
        need VERIFIER "the verifier's checkpoint"
        need_file "$VERIFIER" "the verifier (VERIFIER)"
        ;;&
    gad) FLAGS+=(--AR-path "$VERIFIER" --beta "$BETA" --tau "$TAU") ;;
    AR) FLAGS+=(--path "$VERIFIER") ;;
    left2right | fairseq) FLAGS+=(--path "$VERIFIER" --beam "${BEAM:-5}") ;;
    drafter) ;;
    *) fail "STRATEGY must be gad, AR, left2right, fairseq or drafter, not $STRATEGY" ;;
    esac
    [ -z "${DRAFT_TOKENS:-}" ] || FLAGS+=(--num-draft-tokens "$DRAFT_TOKENS")
    [ -z "${LOOKAHEAD:-}" ] || FLAGS+=(--lookahead "$LOOKAHEAD")
    [ -z "${DRAFTER_DTYPE:-}" ] || FLAGS+=(--drafter-dtype "$DRAFTER_DTYPE")
    [ -z "${MAX_LEN_A:-}" ] || FLAGS+=(--max-len-a "$MAX_LEN_A")
    [ -z "${MAX_LEN_B:-}" ] || FLAGS+=(--max-len-b "$MAX_LEN_B")
    [ -z "${STATS:-}" ] || FLAGS+=(--stats-path "$STATS")
    [ "${CPU:-0}" != 1 ] || FLAGS+=(--cpu)
    [ "${FP16:-0}" != 1 ] || FLAGS+=(--fp16)
    [ "${BF16:-0}" != 1 ] || FLAGS+=(--bf16)
    [ "${CUDA_GRAPHS:-0}" != 1 ] || FLAGS+=(--cuda-graphs)
}

# tool_error LOG ERRORS OTHERWISE: why a fairseq tool failed, in one line: the plugin's own if there is one, else the last line of a
# traceback.
tool_error() {
    local line
    line=$(cat "$1" "$2" | grep '^error: ' | tail -n 1 || true)
    [ -n "$line" ] || line=$(grep -v -e '^[[:space:]]*$' -e '^INFO:' "$2" | tail -n 1 || true)
    line=${line:-$3}
    echo "error: ${line#error: }"
}

# has_symbol SYMBOL DICTIONARY / add_symbol SYMBOL DICTIONARY: as the last one, so that the numbers of the others stay, unless it is
# there.
has_symbol() {
    awk -v symbol="$1" '($1 "") == symbol { found = 1 } END { exit !found }' "$2"
}
add_symbol() {
    has_symbol "$1" "$2" || printf '%s 1\n' "$1" >> "$2"
}

# mend_last FOLDER: fairseq copies checkpoint_last.pt from the checkpoint it has just written, and a copy that was interrupted is a
# broken archive. Then the newest whole checkpoint takes its place.
mend_last() {
    local last=$1/checkpoint_last.pt candidate newest=
    [ -e "$last" ] && ! is_whole "$last" || return 0
    while IFS= read -r candidate; do
        if [ "$candidate" != "$last" ] && is_whole "$candidate"; then
            newest=$candidate
            break
        fi
    done < <(ls -t "$1"/checkpoint*.pt)
    [ -n "$newest" ] || fail "$last is broken and there is no other checkpoint to go on from: delete it to start again"
    echo "$(basename "$0"): $last is broken (interrupted while it was written); going on from $newest"
    cp "$newest" "$last.tmp"
    mv "$last.tmp" "$last"
}
is_whole() {
    python -c 'import sys, zipfile; sys.exit(not zipfile.is_zipfile(sys.argv[1]))' "$1"
}
