# cmake -D DOXYGEN= -D SCRIPT= -D DOXYFILE= -D FOLDER= -D PLANTED= -P ...: makes the reference as its target does; that of a
# planted header must fail.
cmake_minimum_required(VERSION 3.25)
if(NOT DOXYGEN)
  message("skipped: doxygen is not installed")
  return()
endif()
execute_process(COMMAND ${CMAKE_COMMAND} -D DOXYGEN=${DOXYGEN} -D DOXYFILE=${DOXYFILE} -D FOLDER=${FOLDER} -P ${SCRIPT}
  COMMAND_ERROR_IS_FATAL ANY)

string(REGEX REPLACE "([[*?])" "[\\1]" pattern_of_folder "${FOLDER}")
# Members of headers and pages of docs/ are found in the reference; amin shares the comment of amax.
function(require page pattern)
  file(GLOB files "${pattern_of_folder}/${page}")
  if(NOT files)
    message(FATAL_ERROR "no page ${page}")
  endif()
  file(READ ${files} text)
  string(REGEX REPLACE "<[^>]*>" "" text "${text}")
  if(NOT text MATCHES "${pattern}")
    message(FATAL_ERROR "${page}: ${pattern} not found")
  endif()
endfunction()
require(index.html "Guides.*Reference.*Background")
require(functional_8h.html "amin[^(]*\\([^)]*\\)[^(]*Largest or smallest element over dims")
require(classlockstep_1_1Tensor.html "#include &lt;lockstep/runtime/tensor.h&gt;.*Gradient of a leaf")
require(lockstep_8h.html "lockstep/lockstep.h")
file(GLOB private "${pattern_of_folder}/*unary_functions*" "${pattern_of_folder}/*1_1detail_1_1*")
if(private)
  message(FATAL_ERROR "pages of private names: ${private}")
endif()

set(planted ${FOLDER}_planted)
file(WRITE ${planted}.settings "@INCLUDE = \"${DOXYFILE}\"\nINPUT = \"${PLANTED}\"\nUSE_MDFILE_AS_MAINPAGE =
OUTPUT_DIRECTORY = \"${planted}\"\nWARN_LOGFILE = \"${planted}.warnings\"\n")
execute_process(COMMAND ${CMAKE_COMMAND} -D DOXYGEN=${DOXYGEN} -D DOXYFILE=${planted}.settings -D FOLDER=${planted} -P ${SCRIPT}
  RESULT_VARIABLE result ERROR_VARIABLE errors)
string(REGEX MATCHALL "planted_undocumented\\.h:[0-9]+: warning: [^(\n]*" found "${errors}")
list(REMOVE_DUPLICATES found)
list(SORT found COMPARE NATURAL)
set(expected "planted_undocumented.h:11: warning: Member planted_function"
  "planted_undocumented.h:13: warning: Compound lockstep::PlantedClass is not documented."
  "planted_undocumented.h:26: warning: Member PlantedEnumeration "
  "planted_undocumented.h:28: warning: Unsupported xml/html tag <vector> found")
if(result EQUAL 0 OR NOT found STREQUAL expected)
  message(FATAL_ERROR "expected ${expected}; found ${found}: ${errors}")
endif()
