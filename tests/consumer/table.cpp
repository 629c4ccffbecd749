// Datasets and files without the rest (lockstep::data): must load no library for communication.
#include <lockstep/parallel/data/dataset.h>
#include <lockstep/parallel/data/safetensors.h>

#include <array>
#include <cstdio>

int main() {
    const std::array<float, 4> values{1, 2, 3, 4};
    lockstep::write_safetensors("table.safetensors",
                                {{.name = "x", .dtype = lockstep::DType::f32, .shape = {4}, .data = values.data()}});
    std::array<float, 4> read{};
    lockstep::SafetensorsFile("table.safetensors").read("x", std::as_writable_bytes(std::span(read)));
    const auto x = lockstep::Tensor::from(std::span<const float>(read), {4, 1});
    const lockstep::TensorDataset data(x, lockstep::Tensor::zeros({4, 1}));
    std::printf("%lld rows\n", static_cast<long long>(data.size()));
    return read == values && data.size() == 4 ? 0 : 1;
}
