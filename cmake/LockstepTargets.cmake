# The one library target. Folders add their sources to it; headers are seen as lockstep/<folder>/<header>.h in the
# tree as after installation, through links in the build folder.
add_library(lockstep)
add_library(lockstep::lockstep ALIAS lockstep)

set(LOCKSTEP_INCLUDE_VIEW ${PROJECT_BINARY_DIR}/include)
file(MAKE_DIRECTORY ${LOCKSTEP_INCLUDE_VIEW}/lockstep)
foreach(folder runtime ops parallel samples tests bench)
  file(CREATE_LINK ${PROJECT_SOURCE_DIR}/${folder} ${LOCKSTEP_INCLUDE_VIEW}/lockstep/${folder} SYMBOLIC)
endforeach()
file(CREATE_LINK ${PROJECT_SOURCE_DIR}/parallel/lockstep.h ${LOCKSTEP_INCLUDE_VIEW}/lockstep/lockstep.h SYMBOLIC)

# Headers that lie directly in these folders are public; all others are not installed.
foreach(folder runtime ops parallel/comm parallel/data parallel)
  file(GLOB headers RELATIVE ${PROJECT_SOURCE_DIR} CONFIGURE_DEPENDS ${PROJECT_SOURCE_DIR}/${folder}/*.h)
  list(APPEND LOCKSTEP_PUBLIC_HEADERS ${headers})
endforeach()

target_include_directories(lockstep PUBLIC $<BUILD_INTERFACE:${LOCKSTEP_INCLUDE_VIEW}> $<INSTALL_INTERFACE:include>)
target_include_directories(lockstep SYSTEM PRIVATE ${LOCKSTEP_XXHASH_INCLUDE})
target_compile_features(lockstep PUBLIC cxx_std_20)
set_target_properties(lockstep PROPERTIES POSITION_INDEPENDENT_CODE ON)
target_link_libraries(lockstep PUBLIC Threads::Threads
  PRIVATE OpenMP::OpenMP_CXX fmt::fmt ZLIB::ZLIB oneDNN::dnnl Sodium::sodium JPEG::JPEG PNG::PNG GIF::GIF
    $<BUILD_INTERFACE:nlohmann_json::nlohmann_json>)
if(LOCKSTEP_HAS_CUDA)
  target_link_libraries(lockstep PRIVATE CUDA::cudart CUDA::cublasLt cuDNN::cudnn)
endif()
if(LOCKSTEP_HAS_GLOO)
  target_link_libraries(lockstep PRIVATE Gloo::gloo)
endif()
if(LOCKSTEP_HAS_MPI)
  target_link_libraries(lockstep PRIVATE MPILibrary::mpi)
endif()
if(LOCKSTEP_HAS_NCCL)
  target_link_libraries(lockstep PRIVATE NCCL::nccl)
endif()

# Programs load only the libraries that they use: most systems do not link so by default.
target_link_options(lockstep INTERFACE LINKER:--as-needed)

# Warnings for Lockstep's own C++ sources; a project that embeds Lockstep is left alone.
function(lockstep_warnings target)
  if(LOCKSTEP_STRICT)
    target_compile_options(${target} PRIVATE
      $<$<COMPILE_LANGUAGE:CXX>:-Wall -Wextra -Wconversion -Wshadow -Werror>
      # g++ 12 sees overlapping or endless copies in std::string where there are none (GCC bugs 105329 and 105651).
      $<$<AND:$<COMPILE_LANGUAGE:CXX>,$<CXX_COMPILER_ID:GNU>,$<VERSION_LESS:$<CXX_COMPILER_VERSION>,13>>:-Wno-restrict
      -Wno-stringop-overflow>)
    get_target_property(unity ${target} UNITY_BUILD)
    if(unity)  # there names of one file may hide those of another
      target_compile_options(${target} PRIVATE $<$<COMPILE_LANGUAGE:CXX>:-Wno-shadow -Wno-subobject-linkage>)
    endif()
    if(LOCKSTEP_SANITIZE MATCHES thread)  # instrumented code looks uninitialised to g++ where it is not
      target_compile_options(${target} PRIVATE $<$<COMPILE_LANGUAGE:CXX>:-Wno-maybe-uninitialized>)
    endif()
  endif()
endfunction()
lockstep_warnings(lockstep)
# The arithmetic is fixed by the source: no call to sqrt checks errno, no trap is observed.
target_compile_options(lockstep PRIVATE $<$<COMPILE_LANGUAGE:CXX>:-fno-math-errno -fno-trapping-math>)

# For programs and tests, which spend their time in the library: to optimise them is most of what compiling takes.
set(LOCKSTEP_PROGRAM_OPTIONS $<$<CONFIG:Release>:-O1>)
if(LOCKSTEP_SANITIZE)
  set(LOCKSTEP_PROGRAM_OPTIONS $<$<COMPILE_LANGUAGE:CXX>:-Og>)
endif()

# What nearly every source of the library includes, parsed once: half of the time that a file takes otherwise. Sources
# still include what they use; clang-tidy reads them without this.
target_precompile_headers(lockstep PRIVATE
  <algorithm> <array> <atomic> <chrono> <cstdint> <cstring> <deque> <filesystem> <functional> <map> <memory> <mutex>
  <optional> <set> <span> <string> <string_view> <thread> <tuple> <utility> <variant> <vector>
  <fmt/format.h>
  ${PROJECT_SOURCE_DIR}/runtime/tensor.h)

# Groups for CMAKE_UNITY_BUILD, made of neighbours in one folder only: a program that links the archive gets the libraries that
# the folders it uses need, and no others.
function(lockstep_unity_groups target)
  set_target_properties(${target} PROPERTIES UNITY_BUILD_MODE GROUP)
  get_target_property(sources ${target} SOURCES)
  foreach(source IN LISTS sources)
    cmake_path(ABSOLUTE_PATH source BASE_DIRECTORY ${PROJECT_SOURCE_DIR} NORMALIZE)
    cmake_path(RELATIVE_PATH source BASE_DIRECTORY ${PROJECT_SOURCE_DIR} OUTPUT_VARIABLE file)
    cmake_path(GET file PARENT_PATH folder)
    string(MAKE_C_IDENTIFIER "${folder}" folder)
    list(APPEND ${folder}_seen ${file})
    list(LENGTH ${folder}_seen count)
    math(EXPR part "(${count} - 1) / 12")
    set_source_files_properties(${source} TARGET_DIRECTORY ${target} PROPERTIES UNITY_GROUP ${folder}_${part})
  endforeach()
endfunction()

# What lockstep-run is made of, compiled file by file where CMAKE_UNITY_BUILD is on: together with others it would bring
# the whole library, and every library of that, into a program that starts others.
function(lockstep_launcher_sources target)
  set_source_files_properties(${ARGN} TARGET_DIRECTORY ${target} PROPERTIES SKIP_UNITY_BUILD_INCLUSION ON)
endfunction()

# Sanitizers apply to every library here and to what links it, because a program is checked only if all of it is
# instrumented. Targets with the property LOCKSTEP_TESTS leave out the checks of pointers that GCC inserts before each
# member access: they double the time that compiling test cases takes, and AddressSanitizer reports null pointers, too.
function(lockstep_sanitize target)
  if(LOCKSTEP_SANITIZE)
    target_compile_options(${target} PUBLIC $<$<COMPILE_LANGUAGE:CXX>:-fsanitize=${LOCKSTEP_SANITIZE}
      $<$<BOOL:$<TARGET_PROPERTY:LOCKSTEP_TESTS>>:-fno-sanitize=null,alignment,vptr>
      -fno-sanitize-recover=all -fno-omit-frame-pointer>)
    target_link_options(${target} PUBLIC -fsanitize=${LOCKSTEP_SANITIZE})
  endif()
endfunction()
lockstep_sanitize(lockstep)
