// Conversion between strided memory of any float type and dense arrays of double, on which the reference loops compute.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace standin {

enum class Scalar { f32, f64, f16, bf16 };
std::size_t bytes_of(Scalar type);
const char* name_of(Scalar type);
double load_scalar(Scalar type, const void* data, std::int64_t index);
void store_scalar(Scalar type, void* data, std::int64_t index, double value);

/// Dimensions and strides in elements; strides are not negative.
struct Strided {
    Scalar type = Scalar::f32;
    std::vector<std::int64_t> dims;
    std::vector<std::int64_t> strides;

    std::int64_t count() const;
    /// Bytes from the first to one past the last element.
    std::size_t extent_bytes() const;
    /// The same elements with their dimensions in another order.
    Strided permuted(const std::vector<std::size_t>& order) const;
    /// With stride 0 in dimensions where this has one element and `like` has more; empty dims if that is not possible.
    Strided broadcast(const std::vector<std::int64_t>& like) const;
};

std::vector<std::int64_t> packed_strides(const std::vector<std::int64_t>& dims);

/// The elements in row-major order of the dimensions.
std::vector<double> load(const Strided& from, const void* data);

/// data = alpha * values + beta * data; data is not read if beta is 0. `unsteady`: some results, at random, are one
/// unit in the last place larger, as with algorithms that do not promise the same bits.
void store(const Strided& to, void* data, const std::vector<double>& values, double alpha = 1, double beta = 0,
           bool unsteady = false);

/// to[0..count) += factor * from[0..count), for arrays of the stand-in's own.
void add_scaled(double* to, const double* from, double factor, std::size_t count);

}  // namespace standin
