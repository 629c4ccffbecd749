# The library targets and what they share. Headers are included as lockstep/<folder>/<header>.h in the tree as after
# installation, through links in cmake/include. They are part of the tree so that all build folders see headers by the
# same paths: ccache then shares kernels, which take half of the library's build, between presets.
set(LOCKSTEP_INCLUDE_VIEW ${PROJECT_SOURCE_DIR}/cmake/include)

# Headers directly in these folders are public; all others are not installed. A glob would take brackets in the path of
# the clone for sets of characters.
string(REGEX REPLACE "([[*?])" "[\\1]" source_pattern "${PROJECT_SOURCE_DIR}")
foreach(folder runtime ops parallel/comm parallel/data parallel)
  file(GLOB headers RELATIVE "${PROJECT_SOURCE_DIR}" CONFIGURE_DEPENDS "${source_pattern}/${folder}/*.h")
  if(NOT headers)
    message(FATAL_ERROR "Lockstep: no headers found in ${PROJECT_SOURCE_DIR}/${folder}; expected the whole source tree")
  endif()
  list(APPEND LOCKSTEP_PUBLIC_HEADERS ${headers})
endforeach()

# Warnings for Lockstep's own C++ sources; they do not affect projects that embed Lockstep.
function(lockstep_warnings target)
  if(LOCKSTEP_STRICT)
    target_compile_options(${target} PRIVATE
      $<$<COMPILE_LANGUAGE:CXX>:-Wall -Wextra -Wconversion -Wshadow -Werror>
      # As g++ does: no warning of conversions that only change the sign or of pragmas that another compiler reads.
      $<$<COMPILE_LANG_AND_ID:CXX,Clang>:-Wno-sign-conversion -Wno-unknown-pragmas>
      # g++ 12 falsely reports overlapping or endless copies in std::string (GCC bugs 105329 and 105651), and dangling
      # pointers to options of layers in default member initialisers.
      $<$<AND:$<COMPILE_LANGUAGE:CXX>,$<CXX_COMPILER_ID:GNU>,$<VERSION_LESS:$<CXX_COMPILER_VERSION>,13>>:-Wno-restrict
      -Wno-stringop-overflow -Wno-dangling-pointer>)
    get_target_property(unity ${target} UNITY_BUILD)
    if(unity)  # names of one file may hide those of another
      target_compile_options(${target} PRIVATE $<$<COMPILE_LANGUAGE:CXX>:-Wno-shadow>
        $<$<COMPILE_LANG_AND_ID:CXX,GNU>:-Wno-subobject-linkage>)
    endif()
    if(LOCKSTEP_SANITIZE)  # false reports of uninitialised values in instrumented code
      target_compile_options(${target} PRIVATE $<$<COMPILE_LANG_AND_ID:CXX,GNU>:-Wno-maybe-uninitialized>)
    endif()
  endif()
endfunction()

# Another compiler for programs, benchmarks and tests, with the same binary interface. Clang compiles them three times as fast
# as g++, and they take more than half of the time of a build.
set(LOCKSTEP_PROGRAM_COMPILER "" CACHE FILEPATH "Compiler of programs and tests, if it is not the library's")
mark_as_advanced(LOCKSTEP_PROGRAM_COMPILER)

# For programs and tests, which spend their time in the library: optimising them would dominate compile time.
set(LOCKSTEP_PROGRAM_OPTIONS $<$<AND:$<COMPILE_LANGUAGE:CXX>,$<CONFIG:Release>>:-O1>)
if(LOCKSTEP_SANITIZE)
  set(LOCKSTEP_PROGRAM_OPTIONS $<$<COMPILE_LANG_AND_ID:CXX,Clang>:-O0> $<$<COMPILE_LANG_AND_ID:CXX,GNU>:-Og>)
elseif(LOCKSTEP_PROGRAM_COMPILER)
  set(LOCKSTEP_PROGRAM_OPTIONS -O0)
endif()
# lockstep_program_compiler(targets...): compiles their C++ sources with it, if there is one.
function(lockstep_program_compiler)
  if(LOCKSTEP_PROGRAM_COMPILER)
    set_target_properties(${ARGN} PROPERTIES CXX_COMPILER_LAUNCHER
      "${PROJECT_SOURCE_DIR}/cmake/compile_with;${LOCKSTEP_PROGRAM_COMPILER};${CMAKE_CXX_COMPILER};${CMAKE_CXX_COMPILER_LAUNCHER}")
  endif()
endfunction()

# Groups for CMAKE_UNITY_BUILD. All sources of a group are in one folder, so that a program that links the archive loads only
# the libraries of the folders that it uses. A source that already has a group is not moved.
function(lockstep_unity_groups target)
  set_target_properties(${target} PROPERTIES UNITY_BUILD_MODE GROUP)
  get_target_property(sources ${target} SOURCES)
  foreach(source IN LISTS sources)
    cmake_path(ABSOLUTE_PATH source BASE_DIRECTORY ${PROJECT_SOURCE_DIR} NORMALIZE)
    get_source_file_property(group ${source} TARGET_DIRECTORY ${target} UNITY_GROUP)
    if(group)
      continue()
    endif()
    cmake_path(RELATIVE_PATH source BASE_DIRECTORY ${PROJECT_SOURCE_DIR} OUTPUT_VARIABLE file)
    cmake_path(GET file PARENT_PATH folder)
    string(MAKE_C_IDENTIFIER "${folder}" folder)
    list(APPEND ${folder}_seen ${file})
    list(LENGTH ${folder}_seen count)
    math(EXPR part "(${count} - 1) / 12")
    set_source_files_properties(${source} TARGET_DIRECTORY ${target} PROPERTIES UNITY_GROUP ${folder}_${part})
  endforeach()
endfunction()

# Sanitizers apply to every library here and to what links it, because a program is checked only if all of it is
# instrumented. GCC's own checks for null pointers, objects that are too small and destroyed objects are disabled:
# AddressSanitizer reports such accesses anyway, and the checks add a quarter to compile time. For targets with the property
# LOCKSTEP_TESTS, checks of alignment are disabled as well. Targets with LOCKSTEP_REFERENCES, loops of the tests, are
# not instrumented.
function(lockstep_sanitize target)
  if(LOCKSTEP_SANITIZE)
    set(applies $<AND:$<COMPILE_LANGUAGE:CXX>,$<NOT:$<BOOL:$<TARGET_PROPERTY:LOCKSTEP_REFERENCES>>>>)
    target_compile_options(${target} PUBLIC $<${applies}:-fsanitize=${LOCKSTEP_SANITIZE}
      -fno-sanitize=null,vptr,object-size $<$<BOOL:$<TARGET_PROPERTY:LOCKSTEP_TESTS>>:-fno-sanitize=alignment>
      -fno-sanitize-recover=all -fno-omit-frame-pointer>)
    target_link_options(${target} PUBLIC -fsanitize=${LOCKSTEP_SANITIZE})
    # The macros of GCC, which sources ask for; Clang 16 has none.
    set(macro __SANITIZE_ADDRESS__=1)
    if(LOCKSTEP_SANITIZE MATCHES thread)
      set(macro __SANITIZE_THREAD__=1)
    endif()
    target_compile_definitions(${target} PUBLIC $<$<COMPILE_LANG_AND_ID:CXX,Clang>:${macro}>)
  endif()
endfunction()

# Minor versions of 0.x may change the binary interface.
set(LOCKSTEP_SOVERSION ${lockstep_VERSION_MAJOR}.${lockstep_VERSION_MINOR})

# lockstep_library(name export): a library that is installed as lockstep::export.
function(lockstep_library name export)
  add_library(${name})
  add_library(lockstep::${export} ALIAS ${name})
  set_target_properties(${name} PROPERTIES EXPORT_NAME ${export} POSITION_INDEPENDENT_CODE ON
    VERSION ${lockstep_VERSION} SOVERSION ${LOCKSTEP_SOVERSION}
    DEFINE_SYMBOL ""           # by default a macro that only shared libraries have
    INSTALL_RPATH "\$ORIGIN")  # search path of shared libraries for each other
  # Sanitizers export further names.
  if(BUILD_SHARED_LIBS AND NOT LOCKSTEP_SANITIZE)
    set(map ${PROJECT_SOURCE_DIR}/cmake/exported_names.map)
    target_link_options(${name} PRIVATE LINKER:--version-script=${map})
    set_property(TARGET ${name} APPEND PROPERTY LINK_DEPENDS ${map})
  endif()
  lockstep_warnings(${name})
  # The arithmetic is fixed by the source: no call to sqrt checks errno, no trap is observed.
  target_compile_options(${name} PRIVATE $<$<COMPILE_LANGUAGE:CXX>:-fno-math-errno -fno-trapping-math>)
  # Headers that nearly every source includes, parsed once: this halves compile time. Sources still include all headers
  # that they use; clang-tidy reads them without the precompiled header.
  target_precompile_headers(${name} PRIVATE
    <algorithm> <array> <atomic> <chrono> <cstdint> <cstring> <deque> <filesystem> <functional> <map> <memory> <mutex>
    <optional> <set> <span> <string> <string_view> <thread> <tuple> <utility> <variant> <vector>
    <fmt/format.h>
    ${PROJECT_SOURCE_DIR}/runtime/tensor.h)
endfunction()

# lockstep_backend_library(name parent libraries...): sets LOCKSTEP_<NAME>_LIBRARY to the library that contains a backend
# which needs `libraries`: `parent`, or in shared builds one that a program loads when it first wants the backend.
function(lockstep_backend_library name parent)
  string(TOUPPER LOCKSTEP_${name}_LIBRARY variable)
  set(library ${parent})
  if(BUILD_SHARED_LIBS)
    set(library lockstep_${name})
    lockstep_library(${library} ${name})
    target_link_libraries(${library} PRIVATE ${parent} OpenMP::OpenMP_CXX fmt::fmt)
    set(LOCKSTEP_BACKEND_LIBRARIES ${LOCKSTEP_BACKEND_LIBRARIES} ${library} PARENT_SCOPE)
    add_dependencies(lockstep_backends ${library})
  endif()
  target_link_libraries(${library} PRIVATE ${ARGN})
  set(${variable} ${library} PARENT_SCOPE)
endfunction()
add_custom_target(lockstep_backends)  # all libraries of backends; nothing links them

# lockstep_backend(name sources...): adds the sources of a process-group backend, or that of its absence.
function(lockstep_backend name)
  string(TOUPPER ${name} upper)
  if(NOT LOCKSTEP_HAS_${upper})
    target_sources(lockstep_comm PRIVATE ${name}/absent.cpp)
    set_source_files_properties(${name}/absent.cpp TARGET_DIRECTORY lockstep_comm PROPERTIES SKIP_UNITY_BUILD_INCLUSION ON)
    return()
  endif()
  target_sources(${LOCKSTEP_${upper}_LIBRARY} PRIVATE ${ARGN})
  if(BUILD_SHARED_LIBS)
    target_sources(lockstep_comm PRIVATE ${name}/in_library.cpp)
    set_source_files_properties(${name}/in_library.cpp TARGET_DIRECTORY lockstep_comm
      PROPERTIES SKIP_UNITY_BUILD_INCLUSION ON)
  endif()
endfunction()

# runtime/ and ops/: devices, tensors, operations. The other libraries link it, and inherit its public settings.
lockstep_library(lockstep_core core)
target_include_directories(lockstep_core PUBLIC $<BUILD_INTERFACE:${LOCKSTEP_INCLUDE_VIEW}> $<INSTALL_INTERFACE:include>)
target_include_directories(lockstep_core SYSTEM PRIVATE ${LOCKSTEP_XXHASH_INCLUDE} ${LOCKSTEP_DLPACK_INCLUDE})
target_compile_features(lockstep_core PUBLIC cxx_std_20)
# Programs load only the libraries that they use; most systems do not link like this by default.
target_link_options(lockstep_core INTERFACE LINKER:--as-needed)
lockstep_sanitize(lockstep_core)
if(LOCKSTEP_SANITIZE)  # tests spend most of their time here, which the presets with sanitizers would not optimise
  target_compile_options(lockstep_core PRIVATE $<$<COMPILE_LANGUAGE:CXX>:-Og>)
endif()
target_link_libraries(lockstep_core PUBLIC Threads::Threads PRIVATE OpenMP::OpenMP_CXX fmt::fmt ZLIB::ZLIB oneDNN::dnnl)
if(LOCKSTEP_HAS_SLEEF)
  target_link_libraries(lockstep_core PRIVATE SLEEF::sleef)
endif()
if(LOCKSTEP_HAS_CUDA)
  lockstep_backend_library(cuda lockstep_core CUDA::cudart CUDA::cublasLt cuDNN::cudnn)
endif()

# parallel/comm/: process groups, their stores and launchers.
lockstep_library(lockstep_comm comm)
target_link_libraries(lockstep_comm PUBLIC lockstep_core PRIVATE OpenMP::OpenMP_CXX fmt::fmt Sodium::sodium)
if(LOCKSTEP_HAS_GLOO)
  lockstep_backend_library(gloo lockstep_comm Gloo::gloo)
endif()
if(LOCKSTEP_HAS_MPI)
  lockstep_backend_library(mpi lockstep_comm MPILibrary::mpi)
endif()
if(LOCKSTEP_HAS_NCCL)
  lockstep_backend_library(nccl lockstep_comm NCCL::nccl CUDA::cudart)
endif()

# parallel/data/: files, datasets, images.
lockstep_library(lockstep_data data)
target_link_libraries(lockstep_data PUBLIC lockstep_core
  PRIVATE fmt::fmt ZLIB::ZLIB $<BUILD_INTERFACE:nlohmann_json::nlohmann_json>)
foreach(library JPEG PNG GIF)
  if(LOCKSTEP_HAS_${library})
    target_link_libraries(lockstep_data PRIVATE ${library}::${library})
  endif()
endforeach()

# The rest of parallel/: training on several devices and in several processes, checkpoints, logs.
lockstep_library(lockstep lockstep)
target_link_libraries(lockstep PUBLIC lockstep_comm lockstep_data lockstep_core
  PRIVATE fmt::fmt ZLIB::ZLIB $<BUILD_INTERFACE:nlohmann_json::nlohmann_json>)
set(LOCKSTEP_LIBRARIES lockstep_core lockstep_comm lockstep_data lockstep)
