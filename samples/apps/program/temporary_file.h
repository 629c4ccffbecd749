// A file in which ranks return their results to the program that started them.
#pragma once

#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <string>
#include <system_error>

#include "lockstep/runtime/error.h"

namespace program {

/// An empty file in TMPDIR whose name begins with `name`; removed with the object. Throws DataError if it cannot be
/// created.
class TemporaryFile {
public:
    explicit TemporaryFile(const std::string& name) {
        std::string path = (std::filesystem::temp_directory_path() / (name + "-XXXXXX")).string();
        const int file = ::mkstemp(path.data());
        if (file < 0)
            throw lockstep::DataError(path + ": cannot create the file; expected TMPDIR to name a writable directory");
        ::close(file);
        path_ = path;
    }
    ~TemporaryFile() {
        std::error_code ignored;
        std::filesystem::remove(path_, ignored);
    }
    TemporaryFile(const TemporaryFile&) = delete;
    TemporaryFile& operator=(const TemporaryFile&) = delete;
    const std::filesystem::path& path() const { return path_; }

private:
    std::filesystem::path path_;
};

}  // namespace program
