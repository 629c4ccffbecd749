#include "lockstep/parallel/engine/shadow_batch.h"

#include <algorithm>
#include <cstring>

#include "lockstep/runtime/internal/operands.h"

namespace lockstep {

namespace {

class Writer {
public:
    template <class T>
    void put(const T& value) {
        put(&value, sizeof value);
    }
    void put(const void* data, std::size_t bytes) { bytes_.append(static_cast<const char*>(data), bytes); }
    std::string take() { return std::move(bytes_); }

private:
    std::string bytes_;
};

class Reader {
public:
    explicit Reader(std::string_view bytes) : left_(bytes) {}
    template <class T>
    T get() {
        T value;
        std::memcpy(&value, take(sizeof value), sizeof value);
        return value;
    }
    const char* take(std::size_t bytes) {
        const char* data = left_.data();
        left_.remove_prefix(bytes);
        return data;
    }
    bool done() const { return left_.empty(); }

private:
    std::string_view left_;
};

}  // namespace

std::string pack_batch(const std::vector<BatchInput>& inputs, std::int64_t chunk) {
    Writer writer;
    writer.put(chunk);
    for (const BatchInput& input : inputs) {
        const auto* whole = std::get_if<Tensor>(&input);
        if (!whole) return {};
        const Tensor rows = whole->detach().to(Device::host()).contiguous();
        writer.put(rows.dtype());
        writer.put(rows.shape().dims());
        for (int i = 0; i < rows.shape().dims(); ++i) writer.put(rows.shape()[i]);
        writer.put(first_element(rows), rows.impl()->meta.bytes());
    }
    return writer.take();
}

std::vector<Tensor> unpack_batch(std::string_view bytes, int shards) {
    Reader reader(bytes);
    const std::int64_t rows = reader.get<std::int64_t>() * shards;
    std::vector<Tensor> inputs;
    while (!reader.done()) {
        const auto dtype = reader.get<DType>();
        Shape shape;
        for (int left = reader.get<int>(); left > 0; --left) shape.push_back(reader.get<std::int64_t>());
        const auto lent = TensorMeta::contiguous(dtype, shape);
        const char* from = reader.take(lent.bytes());
        const std::int64_t lent_rows = shape[0];
        shape[0] = rows;
        const Tensor& input = inputs.emplace_back(Tensor::empty(shape, dtype, Device::host()));
        for (std::int64_t row = 0; row < rows; row += lent_rows) {
            const auto count = static_cast<std::size_t>(std::min(lent_rows, rows - row));
            const std::size_t row_bytes = lent.bytes() / static_cast<std::size_t>(lent_rows);
            std::memcpy(static_cast<char*>(first_element(input)) + static_cast<std::size_t>(row) * row_bytes, from,
                        count * row_bytes);
        }
    }
    return inputs;
}

}  // namespace lockstep
