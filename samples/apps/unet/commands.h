// The commands of unet. Each returns the program's exit status.
#pragma once

namespace unet {

int train(int argc, char** argv);
int predict(int argc, char** argv);
int evaluate(int argc, char** argv);

}  // namespace unet
