// The commands of gpt. Each returns the program's exit status.
#pragma once

namespace gpt {

int train(int argc, char** argv);
int generate(int argc, char** argv);

}  // namespace gpt
