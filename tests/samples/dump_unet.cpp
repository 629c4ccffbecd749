// What tests/pytorch/check_unet.py compares with PyTorch.
// usage: dump_unet logits WEIGHTS WIDTH BILINEAR IMAGES LOGITS SAVED
//        writes what the network makes of the images and, to SAVED, the weights that it was loaded with
//        dump_unet order ROWS SEED EPOCHS
//        prints the rows that `unet train` takes: of every epoch a line
#include <cstdint>
#include <cstdio>
#include <exception>
#include <span>
#include <stdexcept>
#include <string>
#include <vector>

#include "lockstep/parallel/data/safetensors.h"
#include "lockstep/parallel/lockstep.h"
#include "lockstep/samples/unet/net.h"

namespace ls = lockstep;

namespace {

ls::Tensor read_images(const std::string& path) {
    const ls::SafetensorsFile file(path);
    const ls::SafetensorsEntry* const entry = file.find("images");
    if (!entry) throw std::runtime_error(path + ": there is no tensor 'images'");
    ls::Tensor images = ls::Tensor::empty(ls::Shape(entry->shape));
    auto* const values = images.data<float>();
    file.read("images", std::as_writable_bytes(std::span(values, static_cast<std::size_t>(images.numel()))));
    return images;
}

void dump_logits(const std::vector<std::string>& words) {
    ls::DataParallel model(unet::UNet({.bilinear = words[3] == "1", .width = std::stol(words[2])}),
                           ls::Devices({ls::Device::cpu(0)}));
    ls::load(model, words[1]);
    model.eval();
    const ls::NoGrad no_grad;
    const ls::Tensor logits = model.forward(read_images(words[4]));
    const std::vector<float> values = logits.to_vector<float>();
    const ls::Shape shape = logits.shape();
    ls::write_safetensors(words[5],
                          {{"logits", ls::DType::f32, {shape[0], shape[1], shape[2], shape[3]}, values.data()}});
    ls::save(model, words[6]);
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
