// Weights in a file, without datasets: must load no library for images, compressed files or communication.
#include <lockstep/parallel/data/safetensors.h>

#include <array>
#include <cstdio>

int main() {
    const std::array<float, 2> values{1, 2};
    lockstep::write_safetensors("weights.safetensors",
                                {{.name = "w", .dtype = lockstep::DType::f32, .shape = {2}, .data = values.data()}});
    const lockstep::SafetensorsFile file("weights.safetensors");
    std::array<float, 2> read{};
    file.read("w", std::as_writable_bytes(std::span(read)));
    std::printf("%g\n", static_cast<double>(read[1]));
    return read == values ? 0 : 1;
}
