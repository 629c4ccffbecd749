// cuBLASLt: handles, descriptors and matrix products by direct loops in double.
#include <algorithm>
#include <cstring>

#include "lockstep/tests/cuda_standin/cublaslt_algorithm.h"
#include "lockstep/tests/cuda_standin/dense.h"
#include "lockstep/tests/cuda_standin/state.h"

namespace standin {

cublasStatus_t cublas_status(cudaError_t code) {
    switch (code) {
        case cudaSuccess: return CUBLAS_STATUS_SUCCESS;
        case cudaErrorInvalidValue:
        case cudaErrorInvalidResourceHandle: return CUBLAS_STATUS_INVALID_VALUE;
        case cudaErrorNotSupported: return CUBLAS_STATUS_NOT_SUPPORTED;
        case cudaErrorMemoryAllocation: return CUBLAS_STATUS_ALLOC_FAILED;
        case cudaErrorNoDevice:
        case cudaErrorInsufficientDriver: return CUBLAS_STATUS_NOT_INITIALIZED;
        default: return CUBLAS_STATUS_EXECUTION_FAILED;
    }
}

namespace {

struct LtHandle {
    int device;
};
struct LayoutDesc {
    std::uint32_t type;
    std::uint64_t rows, cols;
    std::int64_t ld;
    std::int32_t order = CUBLASLT_ORDER_COL;
    std::int32_t batch = 1;
    std::int64_t batch_stride = 0;
};
struct MatmulDesc {
    std::int32_t compute, scale;
    std::int32_t pointer_mode = CUBLASLT_POINTER_MODE_HOST;
    std::int32_t trans_a = CUBLAS_OP_N, trans_b = CUBLAS_OP_N;
    std::uint32_t epilogue = CUBLASLT_EPILOGUE_DEFAULT;
    void* bias = nullptr;
    std::int32_t bias_type = -1;  // D's
};
struct PreferenceDesc {
    std::uint64_t max_workspace = 0;
    std::uint32_t a = 256, b = 256, c = 256, d = 256;  // least alignment in bytes
};

constexpr std::size_t kWorkspace = 4096;  // returned whenever the preference allows it

Scalar scalar_of(std::int32_t type) {
    switch (type) {
        case CUDA_R_32F: return Scalar::f32;
        case CUDA_R_64F: return Scalar::f64;
        case CUDA_R_16F: return Scalar::f16;
        case CUDA_R_16BF: return Scalar::bf16;
        default: refuse(cudaErrorNotSupported, Kind::unsupported, "an element type without reference loops");
    }
}

const char* name_of_compute(std::int32_t type) {
    switch (type) {
        case CUBLAS_COMPUTE_32F: return "CUBLAS_COMPUTE_32F";
        case CUBLAS_COMPUTE_32F_FAST_TF32: return "CUBLAS_COMPUTE_32F_FAST_TF32";
        case CUBLAS_COMPUTE_64F: return "CUBLAS_COMPUTE_64F";
        default: refuse(cudaErrorNotSupported, Kind::unsupported, "compute type " + std::to_string(type));
    }
}

/// Refuses combinations that are missing in the documentation's table for cublasLtMatmul.
void check_compute(std::int32_t compute, Scalar element) {
    const char* name = name_of_compute(compute);
    const bool supported = compute == CUBLAS_COMPUTE_64F             ? element == Scalar::f64
                           : compute == CUBLAS_COMPUTE_32F_FAST_TF32 ? element == Scalar::f32
                                                                     : element != Scalar::f64;
    if (!supported)
        refuse(cudaErrorNotSupported, Kind::unsupported,
               std::string("matrices of ") + name_of(element) + " with " + name);
}

template <class T>
void assign(T& target, const void* value, std::size_t bytes) {
    if (value == nullptr || bytes != sizeof(T))
        refuse(cudaErrorInvalidValue, Kind::invalid_argument,
               "an attribute of " + std::to_string(sizeof(T)) + " bytes was given " + std::to_string(bytes));
    std::memcpy(&target, value, bytes);
}

// (batch, rows, columns)
Strided matrix(const LayoutDesc& layout, bool transposed) {
    const auto rows = static_cast<std::int64_t>(layout.rows), cols = static_cast<std::int64_t>(layout.cols);
    const bool by_row = layout.order == CUBLASLT_ORDER_ROW;
    if (!by_row && layout.order != CUBLASLT_ORDER_COL)
        refuse(cudaErrorNotSupported, Kind::unsupported, "a tiled matrix order");
    if (layout.ld < (by_row ? cols : rows))
        refuse(cudaErrorInvalidValue, Kind::invalid_argument, "a leading dimension is too small");
    Strided view{scalar_of(static_cast<std::int32_t>(layout.type)),
                 {layout.batch, rows, cols},
                 {layout.batch_stride, by_row ? layout.ld : 1, by_row ? 1 : layout.ld}};
    return transposed ? view.permuted({0, 2, 1}) : view;
}

struct Product {
    Strided a, b, c, d;  // (batch, m, k), (batch, k, n), (batch, m, n) twice
    MatmulDesc how;
    Strided bias;  // added (m), or the gradient that is written (m or n)
    Scalar scale = Scalar::f32;

    bool has(std::uint32_t bits) const { return (how.epilogue & bits) == bits; }
    bool writes_bias() const { return has(CUBLASLT_EPILOGUE_BGRADA) || has(CUBLASLT_EPILOGUE_BGRADB); }
    bool reads_bias() const { return has(CUBLASLT_EPILOGUE_BIAS); }
};

Product product_of(Call& call, cublasLtMatmulDesc_t desc, cublasLtMatrixLayout_t a, cublasLtMatrixLayout_t b,
                   cublasLtMatrixLayout_t c, cublasLtMatrixLayout_t d) {
    const auto& how = call.object<MatmulDesc>(desc);
    const auto& out = call.object<LayoutDesc>(d);
    Product product{matrix(call.object<LayoutDesc>(a), how.trans_a != CUBLAS_OP_N),
                    matrix(call.object<LayoutDesc>(b), how.trans_b != CUBLAS_OP_N),
                    matrix(call.object<LayoutDesc>(c), false),
                    matrix(out, false),
                    how,
                    {},
                    scalar_of(how.scale)};
    check_compute(how.compute, product.d.type);
    const auto& dims_a = product.a.dims;
    const auto& dims_b = product.b.dims;
    const std::vector<std::int64_t> expected{dims_a[0], dims_a[1], dims_b[2]};
    if (dims_a[0] != dims_b[0] || dims_a[2] != dims_b[1] || product.c.dims != expected || product.d.dims != expected)
        refuse(cudaErrorInvalidValue, Kind::invalid_argument,
               "shapes do not agree: (" + std::to_string(dims_a[1]) + ", " + std::to_string(dims_a[2]) + ") times (" +
                   std::to_string(dims_b[1]) + ", " + std::to_string(dims_b[2]) + ") into (" +
                   std::to_string(product.d.dims[1]) + ", " + std::to_string(product.d.dims[2]) + ")");
    constexpr std::uint32_t known[] = {CUBLASLT_EPILOGUE_DEFAULT,   CUBLASLT_EPILOGUE_RELU,   CUBLASLT_EPILOGUE_BIAS,
                                       CUBLASLT_EPILOGUE_RELU_BIAS, CUBLASLT_EPILOGUE_BGRADA, CUBLASLT_EPILOGUE_BGRADB};
    if (std::ranges::find(known, how.epilogue) == std::end(known))
        refuse(cudaErrorNotSupported, Kind::unsupported, "epilogue " + std::to_string(how.epilogue));
    if (how.epilogue != CUBLASLT_EPILOGUE_DEFAULT && how.epilogue != CUBLASLT_EPILOGUE_RELU) {
        if (out.order != CUBLASLT_ORDER_COL || product.d.dims[0] != 1)
            refuse(cudaErrorNotSupported, Kind::unsupported, "a bias epilogue with row order or batches");
        const std::int64_t length = product.has(CUBLASLT_EPILOGUE_BGRADB) ? expected[2] : expected[1];
        product.bias = {how.bias_type < 0 ? product.d.type : scalar_of(how.bias_type), {length}, {1}};
    }
    return product;
}

// The dense result before alpha and beta.
std::vector<double> multiply(const Product& product, const std::vector<double>& a, const std::vector<double>& b) {
    const auto size = [](std::int64_t value) { return static_cast<std::size_t>(value); };
    const std::size_t batches = size(product.d.dims[0]), m = size(product.d.dims[1]), n = size(product.d.dims[2]);
    const std::size_t depth = size(product.a.dims[2]);
    std::vector<double> result(batches * m * n);
    for (std::size_t batch = 0; batch < batches; ++batch)
        for (std::size_t i = 0; i < m; ++i) {
            double* row = &result[(batch * m + i) * n];
            for (std::size_t k = 0; k < depth; ++k) {
                const double factor = a[(batch * m + i) * depth + k];
                add_scaled(row, &b[(batch * depth + k) * n], factor, n);
            }
        }
    return result;
}

// Sums of op(A)'s rows, or of op(B)'s columns: over the common dimension.
std::vector<double> bias_gradient(const Product& product, const std::vector<double>& a, const std::vector<double>& b) {
    std::vector<double> sums(static_cast<std::size_t>(product.bias.dims[0]));
    const auto depth = static_cast<std::size_t>(product.a.dims[2]);
    if (product.has(CUBLASLT_EPILOGUE_BGRADA)) {
        for (std::size_t i = 0; i < a.size(); ++i) sums[i / depth] += a[i];
    } else {
        for (std::size_t i = 0; i < b.size(); ++i) sums[i % sums.size()] += b[i];
    }
    return sums;
}

struct Operands {
    const void *alpha, *a, *b, *beta, *c;
    void* d;
};

void run(const Product& product, const Operands& on, double alpha, double beta) {
    const auto a = load(product.a, on.a), b = load(product.b, on.b);
    auto result = multiply(product, a, b);
    for (double& each : result) each *= alpha;
    if (beta != 0) {
        const auto before = load(product.c, on.c);
        for (std::size_t i = 0; i < result.size(); ++i) result[i] += beta * before[i];
    }
    if (product.reads_bias()) {
        const auto bias = load(product.bias, product.how.bias);
        const auto columns = static_cast<std::size_t>(product.d.dims[2]);
        for (std::size_t i = 0; i < result.size(); ++i) result[i] += bias[i / columns];
    }
    if (product.has(CUBLASLT_EPILOGUE_RELU))
        for (double& each : result) each = std::max(each, 0.0);
    store(product.d, on.d, result);
    if (product.writes_bias()) store(product.bias, product.how.bias, bias_gradient(product, a, b));
}

void set_layout(LayoutDesc& layout, cublasLtMatrixLayoutAttribute_t attribute, const void* value, std::size_t bytes) {
    switch (attribute) {
        case CUBLASLT_MATRIX_LAYOUT_TYPE: return assign(layout.type, value, bytes);
        case CUBLASLT_MATRIX_LAYOUT_ORDER: return assign(layout.order, value, bytes);
        case CUBLASLT_MATRIX_LAYOUT_ROWS: return assign(layout.rows, value, bytes);
        case CUBLASLT_MATRIX_LAYOUT_COLS: return assign(layout.cols, value, bytes);
        case CUBLASLT_MATRIX_LAYOUT_LD: return assign(layout.ld, value, bytes);
        case CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT: return assign(layout.batch, value, bytes);
        case CUBLASLT_MATRIX_LAYOUT_STRIDED_BATCH_OFFSET: return assign(layout.batch_stride, value, bytes);
        default: refuse(cudaErrorNotSupported, Kind::unsupported, "layout attribute " + std::to_string(attribute));
    }
}

void set_matmul(MatmulDesc& desc, cublasLtMatmulDescAttributes_t attribute, const void* value, std::size_t bytes) {
    switch (attribute) {
        case CUBLASLT_MATMUL_DESC_POINTER_MODE:
            assign(desc.pointer_mode, value, bytes);
            if (desc.pointer_mode > CUBLASLT_POINTER_MODE_DEVICE)
                refuse(cudaErrorNotSupported, Kind::unsupported, "vectors of alpha");
            return;
        case CUBLASLT_MATMUL_DESC_TRANSA: return assign(desc.trans_a, value, bytes);
        case CUBLASLT_MATMUL_DESC_TRANSB: return assign(desc.trans_b, value, bytes);
        case CUBLASLT_MATMUL_DESC_EPILOGUE: return assign(desc.epilogue, value, bytes);
        case CUBLASLT_MATMUL_DESC_BIAS_POINTER: return assign(desc.bias, value, bytes);
        case CUBLASLT_MATMUL_DESC_BIAS_DATA_TYPE: return assign(desc.bias_type, value, bytes);
        default: refuse(cudaErrorNotSupported, Kind::unsupported, "matmul attribute " + std::to_string(attribute));
    }
}

}  // namespace
}  // namespace standin

using namespace standin;

extern "C" {

size_t cublasLtGetVersion() { return CUBLAS_VERSION; }
size_t cublasLtGetCudartVersion() { return CUDART_VERSION; }

const char* cublasLtGetStatusName(cublasStatus_t status) {
    error_fetched();
    switch (status) {
        case CUBLAS_STATUS_SUCCESS: return "CUBLAS_STATUS_SUCCESS";
        case CUBLAS_STATUS_NOT_INITIALIZED: return "CUBLAS_STATUS_NOT_INITIALIZED";
        case CUBLAS_STATUS_ALLOC_FAILED: return "CUBLAS_STATUS_ALLOC_FAILED";
        case CUBLAS_STATUS_INVALID_VALUE: return "CUBLAS_STATUS_INVALID_VALUE";
        case CUBLAS_STATUS_EXECUTION_FAILED: return "CUBLAS_STATUS_EXECUTION_FAILED";
        case CUBLAS_STATUS_INTERNAL_ERROR: return "CUBLAS_STATUS_INTERNAL_ERROR";
        case CUBLAS_STATUS_NOT_SUPPORTED: return "CUBLAS_STATUS_NOT_SUPPORTED";
        default: return "CUBLAS_STATUS_UNKNOWN";
    }
}
const char* cublasLtGetStatusString(cublasStatus_t status) { return cublasLtGetStatusName(status); }

cublasStatus_t cublasLtCreate(cublasLtHandle_t* handle) {
    return cublas_call("cublasLtCreate", [&](Call& call) {
        call.need_context(call.current_device());
        *handle = call.create<cublasLtHandle_t>(LtHandle{call.current_device()});
    });
}
cublasStatus_t cublasLtDestroy(cublasLtHandle_t handle) {
    return cublas_call("cublasLtDestroy", [&](Call& call) { call.destroy<LtHandle>(handle); });
}

cublasStatus_t cublasLtMatrixLayoutCreate(cublasLtMatrixLayout_t* layout, cudaDataType type, uint64_t rows,
                                          uint64_t cols, int64_t ld) {
    return cublas_call("cublasLtMatrixLayoutCreate", [&](Call& call) {
        *layout = call.create<cublasLtMatrixLayout_t>(LayoutDesc{static_cast<std::uint32_t>(type), rows, cols, ld});
    });
}
cublasStatus_t cublasLtMatrixLayoutSetAttribute(cublasLtMatrixLayout_t layout,
                                                cublasLtMatrixLayoutAttribute_t attribute, const void* value,
                                                size_t bytes) {
    return cublas_call("cublasLtMatrixLayoutSetAttribute",
                       [&](Call& call) { set_layout(call.object<LayoutDesc>(layout), attribute, value, bytes); });
}
cublasStatus_t cublasLtMatrixLayoutDestroy(cublasLtMatrixLayout_t layout) {
    return cublas_call("cublasLtMatrixLayoutDestroy", [&](Call& call) { call.destroy<LayoutDesc>(layout); });
}

cublasStatus_t cublasLtMatmulDescCreate(cublasLtMatmulDesc_t* desc, cublasComputeType_t compute, cudaDataType_t scale) {
    return cublas_call("cublasLtMatmulDescCreate", [&](Call& call) {
        *desc = call.create<cublasLtMatmulDesc_t>(
            MatmulDesc{static_cast<std::int32_t>(compute), static_cast<std::int32_t>(scale)});
    });
}
cublasStatus_t cublasLtMatmulDescSetAttribute(cublasLtMatmulDesc_t desc, cublasLtMatmulDescAttributes_t attribute,
                                              const void* value, size_t bytes) {
    return cublas_call("cublasLtMatmulDescSetAttribute",
                       [&](Call& call) { set_matmul(call.object<MatmulDesc>(desc), attribute, value, bytes); });
}
cublasStatus_t cublasLtMatmulDescDestroy(cublasLtMatmulDesc_t desc) {
    return cublas_call("cublasLtMatmulDescDestroy", [&](Call& call) { call.destroy<MatmulDesc>(desc); });
}

cublasStatus_t cublasLtMatmulPreferenceCreate(cublasLtMatmulPreference_t* preference) {
    return cublas_call("cublasLtMatmulPreferenceCreate",
                       [&](Call& call) { *preference = call.create<cublasLtMatmulPreference_t>(PreferenceDesc{}); });
}
cublasStatus_t cublasLtMatmulPreferenceSetAttribute(cublasLtMatmulPreference_t preference,
                                                    cublasLtMatmulPreferenceAttributes_t attribute, const void* value,
                                                    size_t bytes) {
    return cublas_call("cublasLtMatmulPreferenceSetAttribute", [&](Call& call) {
        auto& object = call.object<PreferenceDesc>(preference);
        switch (attribute) {
            case CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES: return assign(object.max_workspace, value, bytes);
            case CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES: return assign(object.a, value, bytes);
            case CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES: return assign(object.b, value, bytes);
            case CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES: return assign(object.c, value, bytes);
            case CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES: return assign(object.d, value, bytes);
            default: return;  // the others are not checked
        }
    });
}
cublasStatus_t cublasLtMatmulPreferenceDestroy(cublasLtMatmulPreference_t preference) {
    return cublas_call("cublasLtMatmulPreferenceDestroy",
                       [&](Call& call) { call.destroy<PreferenceDesc>(preference); });
}

cublasStatus_t cublasLtMatmulAlgoGetHeuristic(cublasLtHandle_t handle, cublasLtMatmulDesc_t desc,
                                              cublasLtMatrixLayout_t a, cublasLtMatrixLayout_t b,
                                              cublasLtMatrixLayout_t c, cublasLtMatrixLayout_t d,
                                              cublasLtMatmulPreference_t preference, int requested,
                                              cublasLtMatmulHeuristicResult_t results[], int* returned) {
    return cublas_call("cublasLtMatmulAlgoGetHeuristic", [&](Call& call) {
        const DeviceConfig& card = call.device(call.object<LtHandle>(handle).device).config;
        if (requested < 1 || results == nullptr || returned == nullptr)
            refuse(cudaErrorInvalidValue, Kind::invalid_argument, "the number of requested results is 0");
        const Product product = product_of(call, desc, a, b, c, d);
        const auto& wishes = call.object<PreferenceDesc>(preference);
        results[0] = {};
        results[0].workspaceSize = wishes.max_workspace >= kWorkspace ? kWorkspace : 0;
        const auto at_most = [](std::uint32_t bytes) { return std::min(bytes, kVectorBytes); };
        // According to the header, the bias is assumed to have the alignment of its pointer; without a pointer, any
        // alignment.
        const Chosen chosen{.mark = Chosen::true_mark,
                            .workspace = results[0].workspaceSize,
                            .sm_count = card.sm_count,
                            .compute_capability = card.compute_capability,
                            .a = at_most(wishes.a),
                            .b = at_most(wishes.b),
                            .c = at_most(wishes.c),
                            .d = at_most(wishes.d),
                            .bias = alignment_of(product.how.bias)};
        std::memcpy(&results[0].algo, &chosen, sizeof chosen);
        results[0].state = CUBLAS_STATUS_SUCCESS;
        results[0].wavesCount = 1;
        *returned = 1;
    });
}

cublasStatus_t cublasLtMatmul(cublasLtHandle_t handle, cublasLtMatmulDesc_t desc, const void* alpha, const void* a,
                              cublasLtMatrixLayout_t a_layout, const void* b, cublasLtMatrixLayout_t b_layout,
                              const void* beta, const void* c, cublasLtMatrixLayout_t c_layout, void* d,
                              cublasLtMatrixLayout_t d_layout, const cublasLtMatmulAlgo_t* algorithm, void* workspace,
                              size_t workspace_size, cudaStream_t stream) {
    return cublas_call("cublasLtMatmul", [&](Call& call) {
        const auto lt = call.object<LtHandle>(handle);
        if (lt.device != call.current_device())
            refuse(cudaErrorInvalidResourceHandle, Kind::wrong_device,
                   "the handle belongs to device " + std::to_string(lt.device) + ", but device " +
                       std::to_string(call.current_device()) + " is current");
        const auto target = call.launch_stream(stream);
        const Product product = product_of(call, desc, a_layout, b_layout, c_layout, d_layout);
        if (alpha == nullptr || beta == nullptr)
            refuse(cudaErrorInvalidValue, Kind::invalid_argument, "alpha or beta is null");
        const bool on_device = product.how.pointer_mode == CUBLASLT_POINTER_MODE_DEVICE;
        const double scale = on_device ? 0 : load_scalar(product.scale, alpha, 0);
        const double keep = on_device ? 0 : load_scalar(product.scale, beta, 0);
        std::vector<Access> accesses{{a, product.a.extent_bytes(), false},
                                     {b, product.b.extent_bytes(), false},
                                     {d, product.d.extent_bytes(), true}};
        if (on_device) {
            accesses.push_back({alpha, bytes_of(product.scale), false});
            accesses.push_back({beta, bytes_of(product.scale), false});
        }
        if (on_device || keep != 0) accesses.push_back({c, product.c.extent_bytes(), false});
        if (product.reads_bias() || product.writes_bias())
            accesses.push_back({product.how.bias, product.bias.extent_bytes(), product.writes_bias()});
        if (algorithm != nullptr) {
            Chosen chosen;
            std::memcpy(&chosen, algorithm, sizeof chosen);
            if (chosen.mark != Chosen::true_mark)
                refuse(cudaErrorInvalidValue, Kind::invalid_argument, "the algorithm is not a result of the heuristic");
            const DeviceConfig& card = call.device(lt.device).config;
            if (chosen.sm_count != card.sm_count || chosen.compute_capability != card.compute_capability)
                refuse(cudaErrorInvalidValue, Kind::wrong_device,
                       "the algorithm was chosen on another kind of card than that of device " +
                           std::to_string(lt.device));
            if (workspace_size < chosen.workspace)
                refuse(cudaErrorInvalidValue, Kind::workspace,
                       "a workspace of " + std::to_string(workspace_size) + " bytes, " +
                           std::to_string(chosen.workspace) + " are needed");
            check_alignment("a", a, chosen.a);
            check_alignment("b", b, chosen.b);
            if (on_device || keep != 0) check_alignment("c", c, chosen.c);
            check_alignment("d", d, chosen.d);
            if (product.reads_bias()) check_alignment("the bias", product.how.bias, chosen.bias);
        }
        if (workspace_size != 0) accesses.push_back({workspace, workspace_size, true});
        const Operands on{alpha, a, b, beta, c, d};
        call.launch(
            target, call.name(),
            [product, on, on_device, scale, keep] {
                run(product, on, on_device ? load_scalar(product.scale, on.alpha, 0) : scale,
                    on_device ? load_scalar(product.scale, on.beta, 0) : keep);
            },
            accesses);
        call.count_arithmetic(name_of(product.d.type), name_of_compute(product.how.compute));
    });
}

}  // extern "C"
