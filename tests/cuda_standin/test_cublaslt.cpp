// cuBLASLt's stand-in against plain loops.
#include <cublasLt.h>

#include <random>

#include "lockstep/tests/cuda_standin/fixture.h"

using namespace standin;

namespace {

void ok(cublasStatus_t status) { REQUIRE(status == CUBLAS_STATUS_SUCCESS); }

std::vector<float> random_values(std::size_t count, unsigned seed) {
    std::mt19937 random(seed);
    std::uniform_real_distribution<float> values(-1, 1);
    std::vector<float> result(count);
    for (float& each : result) each = values(random);
    return result;
}

// A stored matrix: rows x cols, element (r, c) at r * step_r + c * step_c.
struct Stored {
    std::size_t rows, cols, ld;
    bool by_row;
    std::size_t size() const { return by_row ? rows * ld : cols * ld; }
    std::size_t at(std::size_t r, std::size_t c) const { return by_row ? r * ld + c : c * ld + r; }
    cublasLtMatrixLayout_t layout(int batch) const {
        cublasLtMatrixLayout_t created = nullptr;
        ok(cublasLtMatrixLayoutCreate(&created, CUDA_R_32F, rows, cols, static_cast<std::int64_t>(ld)));
        const std::int32_t order = by_row ? CUBLASLT_ORDER_ROW : CUBLASLT_ORDER_COL;
        const auto stride = static_cast<std::int64_t>(size());
        ok(cublasLtMatrixLayoutSetAttribute(created, CUBLASLT_MATRIX_LAYOUT_ORDER, &order, sizeof order));
        ok(cublasLtMatrixLayoutSetAttribute(created, CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT, &batch, sizeof batch));
        ok(cublasLtMatrixLayoutSetAttribute(created, CUBLASLT_MATRIX_LAYOUT_STRIDED_BATCH_OFFSET, &stride,
                                            sizeof stride));
        return created;
    }
};

struct Case {
    std::size_t m, n, k;
    bool trans_a, trans_b, by_row;
    int batch;
    cublasLtEpilogue_t epilogue;
    float alpha, beta;
};

void check(const Case& test) {
    CAPTURE(test.m, test.n, test.k, test.trans_a, test.trans_b, test.by_row, test.batch, test.epilogue);
    const Fresh fresh;
    const auto stored = [&](std::size_t rows, std::size_t cols, bool transposed) {
        if (transposed) std::swap(rows, cols);
        return Stored{rows, cols, (test.by_row ? cols : rows) + 1, test.by_row};
    };
    const Stored as = stored(test.m, test.k, test.trans_a), bs = stored(test.k, test.n, test.trans_b);
    const Stored cs = stored(test.m, test.n, false);
    const auto batches = static_cast<std::size_t>(test.batch);
    const auto a = random_values(as.size() * batches, 1), b = random_values(bs.size() * batches, 2);
    const auto c = random_values(cs.size() * batches, 3), bias = random_values(test.m, 4);
    float *da = on_device(a), *db = on_device(b), *dc = on_device(c), *dbias = on_device(bias);
    const cudaStream_t stream = new_stream();

    cublasLtHandle_t handle = nullptr;
    cublasLtMatmulDesc_t desc = nullptr;
    cublasLtMatmulPreference_t preference = nullptr;
    ok(cublasLtCreate(&handle));
    ok(cublasLtMatmulDescCreate(&desc, CUBLAS_COMPUTE_32F, CUDA_R_32F));
    const std::int32_t ta = test.trans_a ? CUBLAS_OP_T : CUBLAS_OP_N, tb = test.trans_b ? CUBLAS_OP_T : CUBLAS_OP_N;
    ok(cublasLtMatmulDescSetAttribute(desc, CUBLASLT_MATMUL_DESC_TRANSA, &ta, sizeof ta));
    ok(cublasLtMatmulDescSetAttribute(desc, CUBLASLT_MATMUL_DESC_TRANSB, &tb, sizeof tb));
    ok(cublasLtMatmulDescSetAttribute(desc, CUBLASLT_MATMUL_DESC_EPILOGUE, &test.epilogue, sizeof test.epilogue));
    ok(cublasLtMatmulDescSetAttribute(desc, CUBLASLT_MATMUL_DESC_BIAS_POINTER, &dbias, sizeof dbias));
    ok(cublasLtMatmulPreferenceCreate(&preference));
    const std::uint64_t limit = 1 << 20;
    ok(cublasLtMatmulPreferenceSetAttribute(preference, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, &limit,
                                            sizeof limit));
    const auto la = as.layout(test.batch), lb = bs.layout(test.batch), lc = cs.layout(test.batch);
    cublasLtMatmulHeuristicResult_t found{};
    int count = 0;
    ok(cublasLtMatmulAlgoGetHeuristic(handle, desc, la, lb, lc, lc, preference, 1, &found, &count));
    REQUIRE(count == 1);
    REQUIRE(found.workspaceSize > 0);
    CHECK(cublasLtMatmul(handle, desc, &test.alpha, da, la, db, lb, &test.beta, dc, lc, dc, lc, &found.algo, nullptr, 0,
                         stream) == CUBLAS_STATUS_INVALID_VALUE);
    CHECK(only_mistake() == Kind::workspace);
    char* workspace = on_device(std::vector<char>(found.workspaceSize));
    ok(cublasLtMatmul(handle, desc, &test.alpha, da, la, db, lb, &test.beta, dc, lc, dc, lc, &found.algo, workspace,
                      found.workspaceSize, stream));
    ok(cudaStreamSynchronize(stream));

    const auto result = on_host(dc, c.size());
    const bool adds_bias = (test.epilogue & CUBLASLT_EPILOGUE_BIAS) != 0;
    double worst = 0;
    for (std::size_t batch = 0; batch < batches; ++batch)
        for (std::size_t i = 0; i < test.m; ++i)
            for (std::size_t j = 0; j < test.n; ++j) {
                double sum = 0;
                for (std::size_t k = 0; k < test.k; ++k)
                    sum += double{a[batch * as.size() + (test.trans_a ? as.at(k, i) : as.at(i, k))]} *
                           double{b[batch * bs.size() + (test.trans_b ? bs.at(j, k) : bs.at(k, j))]};
                const std::size_t at = batch * cs.size() + cs.at(i, j);
                double expected = test.alpha * sum + test.beta * c[at] + (adds_bias ? bias[i] : 0.F);
                if ((test.epilogue & CUBLASLT_EPILOGUE_RELU) != 0) expected = std::max(expected, 0.0);
                worst = std::max(worst, std::abs(expected - result[at]));
            }
    CHECK(worst < 1e-6);
    CHECK(counters().devices[0].launches.at("cublasLtMatmul") == 1);

    if (test.epilogue == CUBLASLT_EPILOGUE_BGRADA) {
        const auto gradient = on_host(dbias, test.m);
        for (std::size_t i = 0; i < test.m; ++i) {
            double sum = 0;
            for (std::size_t k = 0; k < test.k; ++k) sum += a[test.trans_a ? as.at(k, i) : as.at(i, k)];
            CHECK(gradient[i] == Approx(sum).margin(1e-6));
        }
    }
    for (const auto layout : {la, lb, lc}) ok(cublasLtMatrixLayoutDestroy(layout));
    ok(cublasLtMatmulPreferenceDestroy(preference));
    ok(cublasLtMatmulDescDestroy(desc));
    ok(cublasLtDestroy(handle));
    CHECK(counters().live_handles == 0);
}

}  // namespace

TEST_CASE("matrix products: transposes, orders, batches, alpha and beta") {
    for (const bool trans_a : {false, true})
        for (const bool trans_b : {false, true})
            for (const bool by_row : {false, true})
                check({3, 5, 7, trans_a, trans_b, by_row, 2, CUBLASLT_EPILOGUE_DEFAULT, 1.5F, 0.5F});
    check({1, 1, 1, false, false, true, 1, CUBLASLT_EPILOGUE_DEFAULT, 1, 0});
}

TEST_CASE("matrix products with epilogues") {
    check({4, 6, 9, true, false, false, 1, CUBLASLT_EPILOGUE_BIAS, 1, 0});
    check({4, 6, 9, false, false, false, 1, CUBLASLT_EPILOGUE_RELU_BIAS, 1, 1});
    check({4, 6, 9, false, true, false, 1, CUBLASLT_EPILOGUE_BGRADA, 1, 0});
}

TEST_CASE("the requested arithmetic must suit the matrices, and is counted") {
    const Fresh fresh;
    use(0);
    cublasLtHandle_t handle = nullptr;
    ok(cublasLtCreate(&handle));
    const cudaStream_t stream = new_stream(0);
    void* data = on_device(std::vector<double>(4));
    const double zeros[2] = {};  // alpha and beta of either type
    const auto multiply = [&](cublasComputeType_t compute, cudaDataType_t scale, cudaDataType_t type) {
        cublasLtMatmulDesc_t desc = nullptr;
        cublasLtMatrixLayout_t square = nullptr;
        ok(cublasLtMatmulDescCreate(&desc, compute, scale));
        ok(cublasLtMatrixLayoutCreate(&square, type, 2, 2, 2));
        return cublasLtMatmul(handle, desc, zeros, data, square, data, square, zeros, data, square, data, square,
                              nullptr, nullptr, 0, stream);
    };
    ok(multiply(CUBLAS_COMPUTE_32F, CUDA_R_32F, CUDA_R_32F));
    ok(multiply(CUBLAS_COMPUTE_32F, CUDA_R_32F, CUDA_R_16F));
    ok(multiply(CUBLAS_COMPUTE_32F_FAST_TF32, CUDA_R_32F, CUDA_R_32F));
    ok(multiply(CUBLAS_COMPUTE_32F_FAST_TF32, CUDA_R_32F, CUDA_R_32F));
    ok(multiply(CUBLAS_COMPUTE_64F, CUDA_R_64F, CUDA_R_64F));
    ok(cudaStreamSynchronize(stream));
    const auto refused = [&](cublasComputeType_t compute, cudaDataType_t type) {
        CHECK(multiply(compute, CUDA_R_32F, type) == CUBLAS_STATUS_NOT_SUPPORTED);
        CHECK(only_mistake() == Kind::unsupported);
    };
    refused(CUBLAS_COMPUTE_32F_FAST_TF32, CUDA_R_16BF);
    refused(CUBLAS_COMPUTE_32F_FAST_TF32, CUDA_R_64F);
    refused(CUBLAS_COMPUTE_32F, CUDA_R_64F);
    refused(CUBLAS_COMPUTE_64F, CUDA_R_32F);
    refused(CUBLAS_COMPUTE_32I, CUDA_R_32F);
    using Counts = std::map<std::string, std::uint64_t>;
    CHECK(counters().devices[0].arithmetic == Counts{{"cublasLtMatmul f16 CUBLAS_COMPUTE_32F", 1},
                                                     {"cublasLtMatmul f32 CUBLAS_COMPUTE_32F", 1},
                                                     {"cublasLtMatmul f32 CUBLAS_COMPUTE_32F_FAST_TF32", 2},
                                                     {"cublasLtMatmul f64 CUBLAS_COMPUTE_64F", 1}});
    reset_counters();
    CHECK(counters().devices[0].arithmetic.empty());
}

TEST_CASE("cuBLASLt handles are bound to their device, and shapes must match") {
    const Fresh fresh;
    use(0);
    cublasLtHandle_t handle = nullptr;
    cublasLtMatmulDesc_t desc = nullptr;
    ok(cublasLtCreate(&handle));
    ok(cublasLtMatmulDescCreate(&desc, CUBLAS_COMPUTE_32F, CUDA_R_32F));
    const auto square = Stored{2, 2, 2, false}.layout(1), wide = Stored{2, 3, 2, false}.layout(1);
    float* data = on_device(random_values(4, 1));
    const cudaStream_t first = new_stream(0), second = new_stream(1);
    const float one = 1, zero = 0;
    const auto multiply = [&](cublasLtMatrixLayout_t b, cudaStream_t stream) {
        return cublasLtMatmul(handle, desc, &one, data, square, data, b, &zero, data, square, data, square, nullptr,
                              nullptr, 0, stream);
    };
    use(1);
    CHECK(multiply(square, second) != CUBLAS_STATUS_SUCCESS);
    CHECK(only_mistake() == Kind::wrong_device);
    use(0);
    CHECK(multiply(square, second) != CUBLAS_STATUS_SUCCESS);
    CHECK(only_mistake() == Kind::wrong_device);
    CHECK(multiply(wide, first) == CUBLAS_STATUS_INVALID_VALUE);
    CHECK(only_mistake() == Kind::invalid_argument);
    CHECK(multiply(square, first) == CUBLAS_STATUS_SUCCESS);
    ok(cudaStreamSynchronize(first));
}

TEST_CASE("an algorithm is valid only for the alignment and card model it was chosen for") {
    Config config = devices(3);
    config.devices[1].sm_count = 64;
    config.devices[2].compute_capability = 90;
    const Fresh fresh(config);
    float* data = on_device(random_values(64, 1));
    const cudaStream_t stream = new_stream(0);
    cublasLtHandle_t handle = nullptr;
    cublasLtMatmulDesc_t desc = nullptr;
    cublasLtMatmulPreference_t preference = nullptr;
    ok(cublasLtCreate(&handle));
    ok(cublasLtMatmulDescCreate(&desc, CUBLAS_COMPUTE_32F, CUDA_R_32F));
    ok(cublasLtMatmulPreferenceCreate(&preference));
    const auto square = Stored{2, 2, 2, false}.layout(1);
    const float one = 1, zero = 0;
    const auto point_bias = [&](const float* bias) {
        ok(cublasLtMatmulDescSetAttribute(desc, CUBLASLT_MATMUL_DESC_BIAS_POINTER, &bias, sizeof bias));
    };
    const auto choose = [&] {
        cublasLtMatmulHeuristicResult_t found{};
        int count = 0;
        ok(cublasLtMatmulAlgoGetHeuristic(handle, desc, square, square, square, square, preference, 1, &found, &count));
        return found.algo;
    };
    const auto multiply = [&](cublasLtHandle_t with, const cublasLtMatmulAlgo_t& algorithm, float* a, float* b,
                              float* d, cudaStream_t on) {
        return cublasLtMatmul(with, desc, &one, a, square, b, square, &zero, d, square, d, square, &algorithm, nullptr,
                              0, on);
    };
    const auto refused = [&](cublasStatus_t status, Kind kind) {
        CHECK(status == CUBLAS_STATUS_INVALID_VALUE);
        CHECK(only_mistake() == kind);
    };
    const cublasLtMatmulAlgo_t wide = choose();
    ok(multiply(handle, wide, data, data + 4, data + 8, stream));
    refused(multiply(handle, wide, data + 1, data + 4, data + 8, stream), Kind::alignment);
    refused(multiply(handle, wide, data, data + 6, data + 8, stream), Kind::alignment);
    refused(multiply(handle, wide, data, data + 4, data + 9, stream), Kind::alignment);
    const std::uint32_t four = 4;
    for (const auto side : {CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES,
                            CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES})
        ok(cublasLtMatmulPreferenceSetAttribute(preference, side, &four, sizeof four));
    ok(multiply(handle, choose(), data + 1, data + 6, data + 11, stream));

    const cublasLtEpilogue_t epilogue = CUBLASLT_EPILOGUE_BIAS;
    ok(cublasLtMatmulDescSetAttribute(desc, CUBLASLT_MATMUL_DESC_EPILOGUE, &epilogue, sizeof epilogue));
    const cublasLtMatmulAlgo_t unknown = choose();  // selected without a pointer, so it may assume any alignment
    point_bias(data + 17);
    refused(multiply(handle, unknown, data, data + 4, data + 8, stream), Kind::alignment);
    ok(multiply(handle, choose(), data, data + 4, data + 8, stream));
    point_bias(data + 16);
    ok(multiply(handle, unknown, data, data + 4, data + 8, stream));
    ok(cudaStreamSynchronize(stream));

    for (const int other : {1, 2}) {
        const cudaStream_t there = new_stream(other);
        float* memory = on_device(random_values(32, 1), other);
        cublasLtHandle_t handle_there = nullptr;
        ok(cublasLtCreate(&handle_there));
        point_bias(memory + 16);
        refused(multiply(handle_there, unknown, memory, memory + 4, memory + 8, there), Kind::wrong_device);
    }
}
