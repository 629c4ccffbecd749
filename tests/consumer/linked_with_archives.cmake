# cmake -D "FILES=..." -D READELF= -P ...
# Runs the programs FILES, which are linked with archives, and checks which libraries they load.
cmake_minimum_required(VERSION 3.25)
include(${CMAKE_CURRENT_LIST_DIR}/needed_libraries.cmake)
foreach(file IN LISTS FILES)
  cmake_path(GET file PARENT_PATH folder)
  execute_process(COMMAND ${file} WORKING_DIRECTORY ${folder} OUTPUT_QUIET COMMAND_ERROR_IS_FATAL ANY)
  require_only_needed_libraries(${file} libraries)
endforeach()
