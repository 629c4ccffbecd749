# cmake -D OUTPUT=FILE -D SOURCES=LIST -P group_tests.cmake: writes a source that compiles several test sources at once, each
# in a namespace with its own name, so that helpers of equal names do not meet. All headers are included before, outside.
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
