# cmake -D PROGRAM=FILE -D NAME=NAME -D VERSION=VERSION -D PAGE=FILE -P manual_page.cmake: writes a manual page with the text
# of `PROGRAM --help`, whose first line describes the program.
execute_process(COMMAND ${PROGRAM} --help OUTPUT_VARIABLE help COMMAND_ERROR_IS_FATAL ANY)
string(REPLACE "\\" "\\e" help "${help}")
string(REPLACE "-" "\\-" help "${help}")
string(REGEX REPLACE "(^|\n)([.'])" "\\1\\\\&\\2" help "${help}")
string(REGEX MATCH "^[^\n]*" summary "${help}")
string(TOUPPER ${NAME} title)
file(WRITE ${PAGE}.new ".TH ${title} 1 \"\" \"Lockstep ${VERSION}\" \"User Commands\"
.SH NAME
${NAME} \\- ${summary}
.SH DESCRIPTION
.nf
${help}.fi
")
file(RENAME ${PAGE}.new ${PAGE})
