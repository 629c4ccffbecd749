#include "lockstep/parallel/data/files/torch_file.h"

#include <array>
#include <span>
#include <string_view>

#include "lockstep/runtime/error.h"

namespace lockstep::internal {

TorchFile torch_file(const InputFile& file) {
    std::array<char, 9> start{};
    if (file.size() < start.size()) return TorchFile::none;
    file.read_at(0, std::as_writable_bytes(std::span(start)));
    if (start.back() == '{') return TorchFile::none;
    if (std::string_view(start.data(), start.size()).starts_with("PK\x03\x04")) return TorchFile::archive;
    return start[0] == '\x80' && start[1] >= '\x02' && start[1] <= '\x05' ? TorchFile::legacy : TorchFile::none;
}

void refuse_legacy(const InputFile& file) {
    throw DataError(file.name() +
                    ": offset 0: this is a file of torch.save of PyTorch before 1.6, or another pickle; convert it in "
                    "Python: torch.save(torch.load('" +
                    file.name() + "', map_location='cpu', weights_only=True), 'new.pth')");
}

}  // namespace lockstep::internal
