// The figures of a benchmark, written to a file.
#pragma once

#include <filesystem>
#include <span>
#include <string>

#include "lockstep/parallel/data/atomic_file.h"

namespace lockstep {

/// Replaces the file atomically. Throws as AtomicFile.
template <class Json>
void write_json(const std::filesystem::path& path, const Json& figures) {
    const std::string text = figures.dump(1) + '\n';
    AtomicFile file(path);
    file.write(std::as_bytes(std::span(text)));
    file.commit();
}

}  // namespace lockstep
