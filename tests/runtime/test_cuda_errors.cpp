// Errors of the CUDA runtime after which the context is lost: those for which the toolkit's header documents it.
#include <fstream>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include "lockstep/runtime/cuda/check.h"
#include "lockstep/runtime/error.h"
#include "lockstep/tests/catch.h"
#include "lockstep/tests/cuda_standin/standin.h"

using namespace lockstep;

namespace {

/// The errors of the runtime with their documentation in the header.
std::vector<std::pair<cudaError_t, std::string>> documented_errors() {
    std::ifstream file(DRIVER_TYPES);
    std::stringstream text;
    text << file.rdbuf();
    const std::string header = text.str();
    std::vector<std::pair<cudaError_t, std::string>> errors;
    const std::size_t end = header.find("\n};", header.find("enum __device_builtin__ cudaError\n"));
    for (std::size_t at = header.find("enum __device_builtin__ cudaError\n"); at < end;) {
        const std::size_t comment = header.find("/**", at);
        const std::size_t behind = header.find("*/", comment);
        const std::size_t value = header.find('=', behind);
        if (value >= end) break;
        std::string words;
        std::istringstream lines(header.substr(comment, behind - comment));
        for (std::string word; lines >> word;) words += (word == "*" ? "" : word + " ");
        errors.emplace_back(static_cast<cudaError_t>(std::stoi(header.substr(value + 1))), words);
        at = value;
    }
    return errors;
}

}  // namespace

TEST_CASE("every error that requires a restart of the process is recognised") {
    const auto errors = documented_errors();
    int fatal = 0;
    for (const auto& [code, text] : errors) {
        if (text.find("process must be terminated and relaunched") == std::string::npos) continue;
        ++fatal;
        INFO(static_cast<int>(code) << ": " << text);
        CHECK(cuda::loses_context(code));
    }
    CHECK(errors.size() > 80);
    CHECK(fatal >= 10);
}

TEST_CASE("recoverable errors do not count as a lost context") {
    for (const cudaError_t code :
         {cudaSuccess, cudaErrorInvalidValue, cudaErrorMemoryAllocation, cudaErrorInvalidConfiguration,
          cudaErrorNotReady, cudaErrorNoKernelImageForDevice, cudaErrorPeerAccessAlreadyEnabled,
          cudaErrorLaunchOutOfResources, cudaErrorNotSupported, cudaErrorInvalidResourceHandle})
        CHECK_FALSE(cuda::loses_context(code));
}

TEST_CASE("the error about a card without code in the build says how to build it") {
    standin::reset({});
    try {
        cuda::check(cudaErrorNoKernelImageForDevice, "add_one");
        FAIL_CHECK("nothing was thrown");
    } catch (const DeviceError& error) {
        CHECK(std::string(error.what()).find("CMAKE_CUDA_ARCHITECTURES") != std::string::npos);
    }
    CHECK(cuda::is_healthy());
    (void)standin::take_mistakes();
}
