# cmake -D OUTPUT=FILE -D SOURCES=LIST -P group_tests.cmake: writes a source that compiles several test sources at once. Each
# is in a namespace with its own name, so that helpers with equal names do not conflict. All headers are included first,
# outside of the namespaces.
set(includes "")
set(bodies "")
foreach(source IN LISTS SOURCES)
  file(STRINGS ${source} lines REGEX "^#include ")
  list(APPEND includes ${lines})
  cmake_path(GET source STEM name)
  string(APPEND bodies "namespace ${name} {\n#include \"${source}\"\n}\n")
endforeach()
list(REMOVE_DUPLICATES includes)
list(JOIN includes "\n" includes)
file(WRITE ${OUTPUT} "${includes}\n${bodies}")
