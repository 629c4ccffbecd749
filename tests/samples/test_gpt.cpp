// The program gpt: text, windows, the generator with its cache, files, and training on a text that repeats.
#include <cmath>
#include <limits>
#include <string>
#include <tuple>
#include <vector>

#include "lockstep/ops/functional.h"
#include "lockstep/parallel/data/safetensors.h"
#include "lockstep/runtime/autograd.h"
#include "lockstep/runtime/error.h"
#include "lockstep/runtime/random.h"
#include "lockstep/samples/apps/gpt/generator.h"
#include "lockstep/samples/apps/gpt/model_file.h"
#include "lockstep/samples/apps/gpt/text.h"
#include "lockstep/tests/catch.h"
#include "lockstep/tests/fixtures/files.h"
#include "lockstep/tests/fixtures/messages.h"
#include "lockstep/tests/samples/run_program.h"

using namespace lockstep;
using namespace lockstep::test;

namespace {

const std::string small = " --context 8 --width 16 --heads 2 --layers 2 --dropout 0";

std::string repeated(const std::string& part, int times) {
    std::string text;
    for (int i = 0; i < times; ++i) text += part;
    return text;
}

}  // namespace

TEST_CASE("text is decoded as UTF-8 and encoded again, and other bytes are refused with their place") {
    const std::string text = "a\n\xc3\xa4\xe2\x82\xac\xf0\x9f\x98\x80z";
    CHECK(gpt::decoded(text, "text").size() == 6);
    CHECK(gpt::encoded(gpt::decoded(text, "text")) == text);
    for (const char* bad : {"\x80", "\xc3", "\xc0\xaf", "\xe2\x82", "\xe0\x80\x80", "\xed\xa0\x80", "\xf4\x90\x80\x80",
                            "\xf5\x80\x80\x80", "\xff", "\xc3(", "\xe2\x28\xa1"}) {
        CAPTURE(std::string(bad));
        CHECK(refusal_of<DataError>([&] { gpt::decoded("ok" + std::string(bad), "the text"); }) ==
              "the text: byte 2 is not part of a UTF-8 character; expected UTF-8");
    }
}

TEST_CASE("windows of a text follow one another, with the next characters as targets") {
    const gpt::Alphabet alphabet(U"cabb");
    CHECK(alphabet.characters() == U"abc");
    CHECK(alphabet.numbers(U"cab", "text") == std::vector<std::int64_t>{2, 0, 1});
    CHECK(refusal_of<DataError>([&] { alphabet.numbers(U"abd", "--prompt"); }).find("the character 'd'") !=
          std::string::npos);

    const auto numbers =
        std::make_shared<const std::vector<std::int64_t>>(std::vector<std::int64_t>{0, 1, 2, 3, 4, 5, 6, 7});
    CHECK(gpt::Windows::count_in(8, 3) == 2);
    CHECK(gpt::Windows::count_in(7, 3) == 2);
    CHECK(gpt::Windows::count_in(6, 3) == 1);
    CHECK(gpt::Windows::count_in(3, 3) == 0);
    const gpt::Windows windows(numbers, 3, 0, 2), last(numbers, 3, 1, 1);
    const auto [text, next] = windows.get(1);
    CHECK(text.to_vector<std::int64_t>() == std::vector<std::int64_t>{3, 4, 5});
    CHECK(next.to_vector<std::int64_t>() == std::vector<std::int64_t>{4, 5, 6});
    CHECK(std::get<0>(last.get(0)).to_vector<std::int64_t>() == text.to_vector<std::int64_t>());
    std::vector<std::int64_t> first(6), second(6);
    const std::vector<std::int64_t> rows{1, 0};
    const std::vector<std::byte*> to{reinterpret_cast<std::byte*>(first.data()),
                                     reinterpret_cast<std::byte*>(second.data())};
    windows.read(rows, to);
    CHECK(first == std::vector<std::int64_t>{3, 4, 5, 0, 1, 2});
    CHECK(second == std::vector<std::int64_t>{4, 5, 6, 1, 2, 3});
}

TEST_CASE("the generator's logits are those of the network, also after the context is full") {
    manual_seed(4);
    const gpt::Gpt net({.vocabulary = 7, .context = 6, .width = 8, .heads = 2, .layers = 2, .dropout = 0});
    const NoGrad no_grad;
    gpt::Generator generator(net);
    std::vector<std::int64_t> text;
    for (std::int64_t i = 0; i < 15; ++i) {
        const std::int64_t character = i * i % 7;
        const std::vector<float> found = generator.append(character).to_vector<float>();
        if (text.size() == 6) text.erase(text.begin(), text.begin() + 3);
        text.push_back(character);
        const auto length = static_cast<std::int64_t>(text.size());
        const Tensor all = net.forward(Tensor::from(text, {1, length}));
        const std::vector<float> expected = all.select(2, length - 1).flatten().to_vector<float>();
        REQUIRE(found.size() == 7);
        for (std::size_t k = 0; k < 7; ++k) CHECK(found[k] == Approx(expected[k]).margin(1e-5));
    }
}

TEST_CASE("a prediction does not depend on later characters") {
    manual_seed(5);
    const gpt::Gpt net({.vocabulary = 5, .context = 6, .width = 8, .heads = 2, .layers = 1, .dropout = 0});
    const NoGrad no_grad;
    const auto first = [&](std::vector<std::int64_t> text) {
        return net.forward(Tensor::from(text, {1, 6})).slice(2, 0, 3).contiguous().to_vector<float>();
    };
    CHECK(first({1, 2, 3, 4, 0, 1}) == first({1, 2, 3, 0, 0, 0}));
}

TEST_CASE("a GPT is trained on any number of devices with the same bits, resumed, and continues a text") {
    const TemporaryDirectory directory;
    put_bytes(directory / "text.txt", repeated("abcd\n", 60));
    const std::string train =
        "gpt train --data text.txt --batch-size 8 --epochs 30 --lr 0.01 --shards 2 --quiet" + small;
    const ProgramRun one = run_program(directory, train + " --devices cpu:0 --save one.safetensors --json one.json");
    REQUIRE(one.status == 0);
    CHECK(one.err.empty());
    CHECK(run_program(directory, train + " --devices cpu:0,cpu:1 --save two.safetensors").status == 0);
    CHECK(get_bytes(directory / "one.safetensors") == get_bytes(directory / "two.safetensors"));
    CHECK(run_program(directory, train + " --devices cpu:0 --steps 50 --save half.safetensors").status == 0);
    CHECK(run_program(directory, train + " --devices cpu:1 --load half.safetensors --save whole.safetensors").status ==
          0);
    CHECK(get_bytes(directory / "one.safetensors") == get_bytes(directory / "whole.safetensors"));

    const ProgramRun text =
        run_program(directory, "gpt generate --model one.safetensors --prompt bcd --temperature 0 --length 12");
    CHECK(text.status == 0);
    CHECK(text.out == "bcd\nabcd\nabcd\na\n");
    const std::string sampled = "gpt generate --model one.safetensors --temperature 1 --length 40 --seed ";
    CHECK(run_program(directory, sampled + "1").out == run_program(directory, sampled + "1").out);
    CHECK(run_program(directory, sampled + "1 --top 1").out ==
          run_program(directory, "gpt generate --model one.safetensors --temperature 0 --length 40").out);
}

TEST_CASE("gpt reports wrong flags, text and files in one line") {
    const TemporaryDirectory directory;
    put_bytes(directory / "text.txt", repeated("abcd\n", 20));
    put_bytes(directory / "short.txt", "abc");
    put_bytes(directory / "empty.txt", "");
    put_bytes(directory / "latin.txt", "caf\xe9");
    REQUIRE(run_program(directory, "gpt train --data text.txt --steps 1 --batch-size 2 --save net.safetensors" + small)
                .status == 0);
    const auto refused = [&](const std::string& line, int status, const std::string& part) {
        const ProgramRun run = run_program(directory, line);
        CAPTURE(line, run.err);
        CHECK(run.status == status);
        CHECK(run.lines_of_err() == 1);
        CHECK(contains(run.err, part));
    };
    refused("gpt train --data none.txt", 1, "none.txt: cannot read");
    refused("gpt train --data .", 1, "cannot read");
    refused("gpt train --data empty.txt", 1, "empty.txt: the file is empty");
    refused("gpt train --data latin.txt", 1, "latin.txt: byte 3 is not part of a UTF-8 character");
    refused("gpt train --data short.txt", 2, "0 in the training text");
    refused("gpt train --data text.txt --width 10 --heads 4", 2, "--width 10: not divisible by --heads 4");
    refused("gpt train --data text.txt --momentum 0.9", 2, "--momentum");
    refused("gpt train --data text.txt --load net.safetensors --context 8", 2, "expected the same flags");
    refused("gpt generate --model none.safetensors", 1, "none.safetensors");
    refused("gpt generate --model net.safetensors --prompt xyz", 1, "the character 'x'");
    refused("gpt generate --model net.safetensors --prompt ''", 2, "value is empty");
    refused("gpt generate", 2, "--model");
    refused("gpt paint", 2, "A subcommand is required");
}

TEST_CASE("gpt generate refuses a network whose output is not finite") {
    const TemporaryDirectory directory;
    const gpt::Alphabet alphabet(U"abc");
    const gpt::Config config{.vocabulary = 3, .context = 4, .width = 4, .heads = 1, .layers = 1, .dropout = 0};
    for (const float bad : {std::numeric_limits<float>::quiet_NaN(), std::numeric_limits<float>::infinity()}) {
        gpt::Gpt net(config);
        {
            const NoGrad no_grad;
            net.norm.bias->tensor().fill_(bad);
        }
        std::vector<SafetensorsTensor> tensors;
        for (const NamedTensor& named : named_tensors(net)) {
            const Tensor& tensor = named.member->tensor();
            tensors.push_back({named.name,
                               tensor.dtype(),
                               {tensor.shape().begin(), tensor.shape().end()},
                               tensor.data<const float>()});
        }
        write_safetensors(directory / "bad.safetensors", tensors, gpt::metadata_of(config, alphabet));
        for (const char* temperature : {"0", "0.8"}) {
            const ProgramRun run =
                run_program(directory, std::string("gpt generate --model bad.safetensors --prompt ab --temperature ") +
                                           temperature);
            CHECK(run.status == 1);
            CHECK(run.err ==
                  "gpt generate: bad.safetensors: the output of the network is not finite; expected finite weights\n");
        }
    }
}

TEST_CASE("files that gpt train did not save are refused before memory is allocated for them") {
    const TemporaryDirectory directory;
    const std::vector<float> weight(6);
    const auto refusal = [&](const SafetensorsMetadata& metadata) {
        write_safetensors(directory / "other.safetensors", {{"tokens.weight", DType::f32, {3, 2}, weight.data()}},
                          metadata);
        return refusal_of<DataError>([&] { gpt::describe(directory / "other.safetensors"); });
    };
    SafetensorsMetadata metadata;
    CHECK(contains(refusal(metadata), "the metadata lacks alphabet"));
    metadata = {{"alphabet", "abc"}, {"context", "4"}, {"width", "2"}, {"heads", "1"}, {"layers", "1000000"}};
    CHECK(contains(refusal(metadata), "positions.weight is missing"));
    metadata["width"] = "1000000";
    CHECK(contains(refusal(metadata), "tokens.weight is (3, 2); expected (3, 1000000)"));
    for (const char* text : {"", "x", "-1", "0", "3.5", "99999999999999999999"}) {
        metadata["width"] = text;
        CHECK(contains(refusal(metadata), "width is '"));
    }
    metadata["alphabet"] = "cba";
    CHECK(contains(refusal(metadata), "not in ascending order"));
}
