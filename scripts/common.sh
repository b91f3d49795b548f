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

# Standard input with the hyphens inside of words split off, as in the evaluation of Vaswani et al. (2017). Compound-split text
# passes unchanged: splitting "a-b-c" again would go beyond what published references hold.
compound_split() {
    perl -C0 -pe 's{(\S)-(\S)}{$1 ##AT##-##AT## $2}g'
}
split_unless_split() {
    if grep -qF '##AT##-##AT##' "$1"; then cat "$1"; else compound_split < "$1"; fi
}

# generate_lines LETTER LOG: the text of fairseq-generate's T (reference) or H (hypothesis) lines in input order, the best
# hypothesis only.
generate_lines() {
    local field=2
    [ "$1" = T ] || field=3
    sed -n "s/^$1-\\([0-9][0-9]*\\)\\(	.*\\)/\\1\\2/p" "$2" | LC_ALL=C sort -s -u -n -k1,1 | cut -f "$field-"
}
is_generate_log() {
    grep -q '^H-[0-9]*	' "$1" || grep -q '^T-[0-9]*	' "$1"
}

# has_symbol SYMBOL DICTIONARY / add_symbol SYMBOL DICTIONARY: as the last one, so that the numbers of the others stay, unless it is
# there.
has_symbol() {
    awk -v symbol="$1" '($1 "") == symbol { found = 1 } END { exit !found }' "$2"
}
add_symbol() {
    has_symbol "$1" "$2" || printf '%s 1\n' "$1" >> "$2"
}
