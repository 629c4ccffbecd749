// Reads one safetensors file and writes its tensors in reverse order to another, so that check_safetensors.py can try
// both directions.
#include <algorithm>
#include <cstddef>
#include <exception>
#include <iostream>
#include <vector>

#include "lockstep/parallel/data/safetensors.h"

int main(int argc, char** argv) {
    if (argc != 3) {
        std::cerr << "usage: safetensors-exchange FROM TO\n";
        return 2;
    }
    try {
        const lockstep::SafetensorsFile file(argv[1]);
        std::vector<std::vector<std::byte>> data;
        std::vector<lockstep::SafetensorsTensor> tensors;
        for (const lockstep::SafetensorsEntry& entry : file.entries()) {
            data.emplace_back(entry.bytes);
            file.read(entry.name, data.back());
            tensors.push_back({entry.name, entry.dtype, entry.shape, data.back().data()});
        }
        std::reverse(tensors.begin(), tensors.end());
        lockstep::write_safetensors(argv[2], tensors, file.metadata());
    } catch (const std::exception& error) {
        std::cerr << "safetensors-exchange: " << error.what() << '\n';
        return 1;
    }
    return 0;
}
