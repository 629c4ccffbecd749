# All dependencies are Debian or Ubuntu packages or part of the CUDA toolkit; nothing is downloaded here.
# cmake/packages.sh lists the packages. lockstepConfig.cmake.in must also find the libraries that Lockstep links.
find_package(Threads REQUIRED)
find_package(OpenMP REQUIRED COMPONENTS CXX)
find_package(fmt REQUIRED)
find_package(ZLIB REQUIRED)
find_package(nlohmann_json REQUIRED)
find_package(oneDNN REQUIRED)
find_package(Sodium REQUIRED)
# Elementary functions of vector registers. Without it, exp, tanh and others are computed one number at a time.
find_package(SLEEF QUIET)
set(LOCKSTEP_HAS_SLEEF ${SLEEF_FOUND})
message(STATUS "Lockstep: SLEEF ${LOCKSTEP_HAS_SLEEF}")
find_path(LOCKSTEP_XXHASH_INCLUDE xxhash.h REQUIRED)  # used as a header: nothing to link
find_path(LOCKSTEP_DLPACK_INCLUDE dlpack/dlpack.h REQUIRED)  # only types
mark_as_advanced(LOCKSTEP_XXHASH_INCLUDE LOCKSTEP_DLPACK_INCLUDE)

# Image formats: each is built if its library is found; otherwise a stub is built.
set(images)
foreach(format "JPEG libjpeg-dev" "PNG libpng-dev" "GIF libgif-dev")
  separate_arguments(format)
  list(GET format 0 library)
  set(LOCKSTEP_HAS_${library} OFF)
  set(status "switched off by LOCKSTEP_IMAGES")
  if(LOCKSTEP_IMAGES)
    list(GET format 1 package)
    find_package(${library} QUIET)
    set(status "not found; install ${package}")
    if(${library}_FOUND)
      set(LOCKSTEP_HAS_${library} ON)
      set(status "${${library}_VERSION}${${library}_VERSION_STRING}")
    endif()
  endif()
  list(APPEND images "${library} ${LOCKSTEP_HAS_${library}} (${status})")
endforeach()
list(JOIN images ", " images)
message(STATUS "Lockstep: images ${images}")

# The CUDA backend is built if the toolkit (12.0 or later, for C++20) and cuDNN are found; otherwise its stubs are built.
# With sanitizers, which see nothing of what nvcc compiles, the tests use its sources as the stand-in compiles them.
set(LOCKSTEP_HAS_CUDA OFF)
set(LOCKSTEP_CUDA_STATUS "switched off by LOCKSTEP_CUDA")
if(LOCKSTEP_SANITIZE)
  set(LOCKSTEP_CUDA_STATUS "not with sanitizers")
elseif(LOCKSTEP_CUDA)
  include(CheckLanguage)
  find_program(LOCKSTEP_NVCC nvcc HINTS ENV CUDA_PATH PATHS /usr/local/cuda PATH_SUFFIXES bin)
  mark_as_advanced(LOCKSTEP_NVCC)
  if(LOCKSTEP_NVCC AND NOT CMAKE_CUDA_COMPILER AND NOT DEFINED ENV{CUDACXX})
    set(ENV{CUDACXX} ${LOCKSTEP_NVCC})
  endif()
  check_language(CUDA)
  if(NOT CMAKE_CUDA_COMPILER)
    set(LOCKSTEP_CUDA_STATUS "no nvcc that works with this C++ compiler was found")
  else()
    set(LOCKSTEP_CHOOSES_ARCHITECTURES OFF)
    if(NOT DEFINED CMAKE_CUDA_ARCHITECTURES AND NOT DEFINED ENV{CUDAARCHS})
      set(LOCKSTEP_CHOOSES_ARCHITECTURES ON)
      set(CMAKE_CUDA_ARCHITECTURES 80)  # while CMake tries the compiler
    endif()
    enable_language(CUDA)
    if(LOCKSTEP_CHOOSES_ARCHITECTURES)
      include(CudaArchitectures)
      lockstep_cuda_architectures(CMAKE_CUDA_ARCHITECTURES "${CMAKE_CUDA_ARCHITECTURES_NATIVE}")
    endif()
    # CMake 3.25 does not know that nvcc 13 supports C++20.
    set(CMAKE_CUDA20_STANDARD_COMPILE_OPTION -std=c++20)
    set(CMAKE_CUDA20_EXTENSION_COMPILE_OPTION -std=c++20)
    set(CMAKE_CUDA_STANDARD 20)
    find_package(CUDAToolkit REQUIRED)
    find_package(cuDNN)
    if(CMAKE_CUDA_COMPILER_VERSION VERSION_LESS 12.0)
      set(LOCKSTEP_CUDA_STATUS "nvcc ${CMAKE_CUDA_COMPILER_VERSION} is older than 12.0")
    elseif(NOT cuDNN_FOUND)
      set(LOCKSTEP_CUDA_STATUS "cuDNN was not found")
    else()
      set(LOCKSTEP_HAS_CUDA ON)
      set(LOCKSTEP_CUDA_STATUS "nvcc ${CMAKE_CUDA_COMPILER_VERSION}, architectures ${CMAKE_CUDA_ARCHITECTURES}")
    endif()
  endif()
endif()
message(STATUS "Lockstep: CUDA backend ${LOCKSTEP_HAS_CUDA} (${LOCKSTEP_CUDA_STATUS})")

# Process-group backends that need a library: each is built if its library is found and links; otherwise a stub is built.
include(CheckCXXSourceCompiles)
include(CMakePushCheckState)
set(LOCKSTEP_HAS_GLOO OFF)
set(LOCKSTEP_GLOO_STATUS "switched off by LOCKSTEP_GLOO")
# A header that Gloo's headers include and its package lacks; searched last, so that a real one has precedence.
set(LOCKSTEP_GLOO_MISSING ${CMAKE_CURRENT_SOURCE_DIR}/parallel/comm/gloo/missing)
set(LOCKSTEP_GLOO_OPTIONS -idirafter ${LOCKSTEP_GLOO_MISSING})
if(LOCKSTEP_GLOO)
  find_package(Gloo QUIET)
  set(LOCKSTEP_GLOO_STATUS "not found; install libgloo-dev")
  if(Gloo_FOUND)
    cmake_push_check_state(RESET)
    set(CMAKE_REQUIRED_FLAGS "-idirafter \"${LOCKSTEP_GLOO_MISSING}\"")
    set(CMAKE_REQUIRED_LIBRARIES Gloo::gloo Threads::Threads)
    check_cxx_source_compiles("#include <gloo/allreduce.h>
      #include <gloo/transport/tcp/context.h>
      #include <gloo/transport/tcp/unbound_buffer.h>
      struct Buffer : gloo::transport::tcp::UnboundBuffer {
        using UnboundBuffer::UnboundBuffer;
        int done() { return recvCompletions_ + sendCompletions_; }
      };
      struct Context : gloo::transport::tcp::Context {
        using gloo::transport::tcp::Context::Context;
        void close() { signalException(std::string()); }
      };
      int main() {
        Context context(nullptr, 0, 1);
        context.close();
        return Buffer(nullptr, nullptr, 0).done();
      }" LOCKSTEP_GLOO_LINKS)
    cmake_pop_check_state()
    set(LOCKSTEP_GLOO_STATUS "${GLOO_LIBRARY} does not link with Lockstep")
    if(LOCKSTEP_GLOO_LINKS)
      set(LOCKSTEP_HAS_GLOO ON)
      set(LOCKSTEP_GLOO_STATUS ${GLOO_LIBRARY})
    endif()
  endif()
endif()

set(LOCKSTEP_HAS_MPI OFF)
set(LOCKSTEP_MPI_STATUS "switched off by LOCKSTEP_MPI")
if(LOCKSTEP_MPI)
  find_package(MPILibrary QUIET)
  set(LOCKSTEP_MPI_STATUS "not found; install libopenmpi-dev")
  if(MPILibrary_FOUND)
    cmake_push_check_state(RESET)
    set(CMAKE_REQUIRED_LIBRARIES MPILibrary::mpi Threads::Threads)
    check_cxx_source_compiles("#include <mpi.h>
      int main() {
        MPI_Request request = MPI_REQUEST_NULL;
        return MPI_Ibarrier(MPI_COMM_WORLD, &request);
      }" LOCKSTEP_MPI_LINKS)
    cmake_pop_check_state()
    set(LOCKSTEP_MPI_STATUS "${MPI_mpi_LIBRARY} does not link with Lockstep")
    if(LOCKSTEP_MPI_LINKS)
      set(LOCKSTEP_HAS_MPI ON)
      set(LOCKSTEP_MPI_STATUS ${MPI_mpi_LIBRARY})
    endif()
  endif()
endif()
set(LOCKSTEP_HAS_NCCL OFF)
set(LOCKSTEP_NCCL_STATUS "switched off by LOCKSTEP_NCCL")
if(LOCKSTEP_NCCL)
  set(LOCKSTEP_NCCL_STATUS "no CUDA backend")
  if(LOCKSTEP_HAS_CUDA)
    find_package(NCCL 2.18 QUIET)
    set(LOCKSTEP_NCCL_STATUS "2.18 or later not found; install libnccl-dev or a CUDA toolkit that includes it")
    if(NCCL_FOUND)
      set(LOCKSTEP_HAS_NCCL ON)
      set(LOCKSTEP_NCCL_STATUS "${NCCL_VERSION}, ${NCCL_LIBRARY}")
    endif()
  endif()
endif()
message(STATUS "Lockstep: backends gloo ${LOCKSTEP_HAS_GLOO} (${LOCKSTEP_GLOO_STATUS}), "
  "mpi ${LOCKSTEP_HAS_MPI} (${LOCKSTEP_MPI_STATUS}), nccl ${LOCKSTEP_HAS_NCCL} (${LOCKSTEP_NCCL_STATUS})")
