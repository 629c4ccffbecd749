// Writes data that tests/pytorch/check_unet.py compares with PyTorch.
// usage: dump_unet logits WEIGHTS WIDTH BILINEAR IMAGES LOGITS SAVED
//        writes the network's output for the images and, to SAVED, the weights that it was loaded with
//        dump_unet gradients WEIGHTS WIDTH BATCH GRADIENTS
//        writes the gradients of all parameters for the images and masks of BATCH, in training mode
//        dump_unet order ROWS SEED EPOCHS
//        prints the rows that `unet train` uses: one line per epoch
#include <cstdint>
#include <cstdio>
#include <exception>
#include <span>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "lockstep/parallel/data/safetensors.h"
#include "lockstep/parallel/lockstep.h"
#include "lockstep/samples/apps/unet/loss.h"
#include "lockstep/samples/apps/unet/net.h"

namespace ls = lockstep;

namespace {

template <class T>
ls::Tensor read(const std::string& path, const std::string& name) {
    const ls::SafetensorsFile file(path);
    const ls::SafetensorsEntry* const entry = file.find(name);
    if (!entry) throw std::runtime_error(path + ": missing tensor '" + name + "'");
    ls::Tensor tensor = ls::Tensor::empty(ls::Shape(entry->shape), ls::dtype_of<T>);
    auto* const values = tensor.data<T>();
    file.read(name, std::as_writable_bytes(std::span(values, static_cast<std::size_t>(tensor.numel()))));
    return tensor;
}

/// A network of the given width with the weights of a file.
ls::DataParallel<unet::UNet> load_network(const std::string& weights, const std::string& width, bool bilinear) {
    ls::DataParallel model(unet::UNet({.bilinear = bilinear, .width = std::stol(width)}),
                           ls::Devices({ls::Device::cpu(0)}));
    ls::load(model, weights);
    return model;
}

/// Writes a file of f32 tensors.
void write(const std::string& path, const std::vector<std::pair<std::string, ls::Tensor>>& named) {
    std::vector<ls::Tensor> kept;
    std::vector<ls::SafetensorsTensor> tensors;
    for (const auto& [name, tensor] : named) {
        kept.push_back(tensor.detach().to(ls::Device::host()).contiguous());
        const ls::Shape shape = kept.back().shape();
        tensors.push_back({name, ls::DType::f32, {shape.begin(), shape.end()}, kept.back().data<const float>()});
    }
    ls::write_safetensors(path, tensors);
}

void dump_logits(const std::vector<std::string>& words) {
    auto model = load_network(words[1], words[2], words[3] == "1");
    model.eval();
    const ls::NoGrad no_grad;
    write(words[5], {{"logits", model.forward(read<float>(words[4], "images"))}});
    ls::save(model, words[6]);
}

void dump_gradients(const std::vector<std::string>& words) {
    auto model = load_network(words[1], words[2], false);
    const ls::Tensor logits = model(read<float>(words[3], "images"));
    const ls::Tensor masks = read<std::int64_t>(words[3], "masks");
    unet::SegmentationLoss()(logits, masks.to(ls::Device::cpu(0))).value().backward();
    std::vector<std::pair<std::string, ls::Tensor>> found;
    for (const ls::NamedTensor& named : ls::named_tensors(*model))
        if (named.member->tensor().requires_grad()) found.emplace_back(named.name, named.member->tensor().grad());
    write(words[4], found);
}

void dump_order(const std::vector<std::string>& words) {
    const std::int64_t rows = std::stol(words[1]);
    const ls::TensorDataset all(ls::Tensor::arange(rows, ls::DType::i64));
    const auto training = ls::random_split(all, {rows}, 0)[0];
    for (std::uint64_t epoch = 0; epoch < std::stoul(words[3]); ++epoch) {
        for (const std::int64_t row : ls::shuffled_order(rows, std::stoul(words[2]), epoch))
            std::printf("%lld ", static_cast<long long>(training.origin(row)));
        std::printf("\n");
    }
}

}  // namespace

int main(int count, char** arguments) {
    const std::vector<std::string> words(arguments + 1, arguments + count);
    try {
        if (words.size() == 7 && words[0] == "logits")
            dump_logits(words);
        else if (words.size() == 5 && words[0] == "gradients")
            dump_gradients(words);
        else if (words.size() == 4 && words[0] == "order")
            dump_order(words);
        else
            return std::fputs("usage: see the top of dump_unet.cpp\n", stderr), 2;
    } catch (const std::exception& error) {
        std::fprintf(stderr, "dump_unet: %s\n", error.what());
        return 1;
    }
    return 0;
}
