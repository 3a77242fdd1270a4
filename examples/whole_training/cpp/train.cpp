// Train with onnxruntime's C++ API alone: one call; prints the validation loss of every epoch.
//
//   g++ -std=c++17 train.cpp -I ORT/include -L ORT/lib -lonnxruntime -Wl,-rpath,ORT/lib -o train
//   ./train FOLDER
//
// where ORT is a release of onnxruntime (1.21 or later) as it is unpacked from its archive.

#include <onnxruntime_cxx_api.h>

#include <array>
#include <cstdint>
#include <cstdio>
#include <fstream>
#include <string>
#include <vector>

template <typename T>
std::vector<T> read(const std::string& path) {
  std::ifstream file(path, std::ios::binary | std::ios::ate);
  if (!file) throw std::runtime_error("cannot read " + path);
  std::vector<T> numbers(static_cast<size_t>(file.tellg()) / sizeof(T));
  file.seekg(0);
  file.read(reinterpret_cast<char*>(numbers.data()), numbers.size() * sizeof(T));
  return numbers;
}

int main(int, char** arguments) {
  const std::string folder = arguments[1];
  Ort::Env environment(ORT_LOGGING_LEVEL_ERROR, "train");
  Ort::SessionOptions options;
  options.DisableMemPattern();
  Ort::Session session(environment, (folder + "/whole.onnx").c_str(), options);

  auto memory = Ort::MemoryInfo::CreateCpu(OrtArenaAllocator, OrtMemTypeDefault);
  auto label = read<int64_t>(folder + "/label.bin");
  auto x = read<float>(folder + "/x.bin");
  const int64_t rows = static_cast<int64_t>(label.size());
  const std::array<int64_t, 2> x_shape{rows, static_cast<int64_t>(x.size()) / rows};
  const std::array<int64_t, 1> label_shape{rows};
  int64_t epochs = 8, batch_size = 32, seed = 0;
  auto scalar = [&](int64_t& number) {
    return Ort::Value::CreateTensor<int64_t>(memory, &number, 1, nullptr, 0);
  };

  std::array<const char*, 5> inputs{"x", "label", "epochs", "batch_size", "seed"};
  std::array<Ort::Value, 5> values{
      Ort::Value::CreateTensor<float>(memory, x.data(), x.size(), x_shape.data(), 2),
      Ort::Value::CreateTensor<int64_t>(memory, label.data(), label.size(), label_shape.data(), 1),
      scalar(epochs), scalar(batch_size), scalar(seed)};
  // The trained weights are outputs too: best/fc0.weight, last/fc0.weight, …
  std::array<const char*, 2> outputs{"history/val_loss", "best_epoch"};
  auto results = session.Run(Ort::RunOptions{nullptr}, inputs.data(), values.data(), inputs.size(),
                             outputs.data(), outputs.size());

  const double* losses = results[0].GetTensorData<double>();
  const size_t count = results[0].GetTensorTypeAndShapeInfo().GetElementCount();
  std::printf("[");
  for (size_t i = 0; i < count; i++) std::printf("%s%.17g", i ? ", " : "", losses[i]);
  std::printf("]\n");
}
