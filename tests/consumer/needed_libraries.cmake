# Programs that use a part of Lockstep must not load the libraries of other parts at their start. Included with READELF set.
set(add_unneeded mpi nccl gloo jpeg png gif sodium z)
set(group_unneeded jpeg png gif z)
set(table_unneeded mpi nccl gloo sodium jpeg png gif z)
set(weights_unneeded mpi nccl gloo sodium jpeg png gif z)

# Fails if FILE, a program of the name that a list above has, loads one of the list. Sets LIBRARIES to all that it loads.
function(require_only_needed_libraries file libraries)
  cmake_path(GET file FILENAME program)
  execute_process(COMMAND ${READELF} -d ${file} OUTPUT_VARIABLE dynamic COMMAND_ERROR_IS_FATAL ANY)
  string(REGEX MATCHALL "Shared library: \\[[^]]*\\]" loaded "${dynamic}")
  message("${program}: ${loaded}")
  foreach(library IN LISTS ${program}_unneeded)
    if(loaded MATCHES "\\[(lib${library}[^]]*)")
      message(FATAL_ERROR "${program} loads ${CMAKE_MATCH_1}, which it does not need")
    endif()
  endforeach()
  set(${libraries} "${loaded}" PARENT_SCOPE)
endfunction()
