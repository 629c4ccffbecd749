// Mixed precision with gradient accumulation: 16-bit products, f32 weights, four microbatches per step.
//
//     mixed_precision [bf16|f16]    default bf16
#include <lockstep/lockstep.h>

#include <cstdio>
#include <exception>
#include <optional>
#include <string>

namespace ls = lockstep;

struct Net {
    ls::Conv2d conv{3, 16, 3};
    ls::Linear fc{16 * 6 * 6, 10};
    LOCKSTEP_MEMBERS(conv, fc)

    // (N, 3, 8, 8) -> (N, 10)
    ls::Tensor forward(const ls::Tensor& x) { return fc(ls::relu(conv(x)).flatten(1)); }
};

int main(int argc, char** argv) try {
    const std::string name = argc > 1 ? argv[1] : "bf16";
    if (name != "bf16" && name != "f16") throw ls::InvalidArgument("dtype is " + name + "; expected bf16 or f16");
    const ls::DType dtype = name == "f16" ? ls::DType::f16 : ls::DType::bf16;
    ls::manual_seed(1);
    const ls::Tensor images = ls::Tensor::randn({640, 3, 8, 8});
    const ls::Tensor labels = ls::argmax(ls::matmul(images.flatten(1), ls::Tensor::randn({192, 10})), 1);

    // Convolutions and matrix products compute in `dtype`, losses and sums in f32.
    ls::DataParallel model(Net{}, ls::Devices::visible(), {.autocast = dtype});
    ls::AdamW adam(model, {.lr = 0.003});
    // f16 has a small range: the scaler multiplies the loss and skips a step if its gradients overflow.
    ls::GradScaler scaler({.enabled = dtype == ls::DType::f16});
    // 64 rows per step in the memory of 16; loss and gradients are those of all 64.
    const ls::StepOptions options{
        .accumulation_steps = 4, .clip = {ls::ClipGradNorm{.max_norm = 1}}, .scaler = &scaler};

    ls::Loader batches(model, ls::TensorDataset(images, labels), {.batch_size = 64, .shuffle = true, .seed = 1});
    for (int epoch = 1; epoch <= 10; ++epoch) {
        std::optional<ls::StepLoss> last;
        for (auto& [input, target] : batches.epoch(epoch))
            last = model.step(adam, input, target, ls::cross_entropy, options);
        std::printf("epoch %d: loss %.4f, gradient norm %.4f\n", epoch, last->item(), last->grad_norm());
    }
    return 0;
} catch (const std::exception& error) {
    std::fprintf(stderr, "mixed_precision: %s\n", error.what());
    return 1;
}
