# awk -f reference_filter.awk FILE: what Doxygen reads of a header or of a page of docs/, with the same lines.
# Headers: the comment at the start describes the file. A comment also describes the declarations that follow without a blank
# line or comment between them. Pages: links to headings and to files outside docs/ become text.
FILENAME ~ /\.md$/ {
    gsub(/\.md#[^)]*\)/, ".md)")
    while (match($0, /\[[^]]+\]\((\.\.\/|#)[^)]*\)/)) {
        text = substr($0, RSTART + 1, RLENGTH - 1)
        sub(/\]\(.*/, "", text)
        $0 = substr($0, 1, RSTART - 1) text substr($0, RSTART + RLENGTH)
    }
    print
    next
}
!begun {
    sub(/^\/\//, "///")
    begun = sub(/^#pragma once/, "/// @file")
    print
    next
}
/^\/\/\/ / {
    comment = own ? comment "\n" $0 : $0
    own = 1
    print
    next
}
/^[a-zA-Z:]/ && !body {
    if (!own && !started && comment != "") {
        text = comment
        gsub(/(^|\n)\/\/\/ /, " ", text)
        printf "/**%s */ ", text
    }
    own = 0
    started = !/[;{}]$/
    body = /{$/ && !/^namespace/
}
/^}/ { body = 0 }
/[;{}]$/ { started = 0 }
(/^$/ && !body) || /^\/\/ / { comment = "" }
{ print }
