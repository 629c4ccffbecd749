# Completion of the flags that `PROGRAM --help` lists, and of file names. Installed once per program.
_lockstep() {
  local word=${COMP_WORDS[COMP_CWORD]}
  [[ $word != -* ]] || mapfile -t COMPREPLY < <(compgen -W "$("$1" --help 2> /dev/null | grep -oE -- '--[a-z0-9-]+')" -- "$word")
}
complete -o default -F _lockstep lockstep-run lockstep-info
