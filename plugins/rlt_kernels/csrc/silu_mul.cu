// SiLU of the gate times up, as rlt_kernels.native calls it through ctypes.
//
// The bits are those of the reference in plain torch (rlt-core's runtime/ops_torch.py): silu in
// float32 as gate / (expf(-gate) + 1), rounded to the dtype, times up in float32, rounded. expf and
// the division are those of torch's own kernels: nothing here may be built with --use_fast_math.
//
// It allocates nothing, waits for nothing and launches on the stream that it is given, so it can be
// captured into a graph.

#include <cstdint>
#include <cstring>

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime.h>

#ifdef __FAST_MATH__
#error "build without --use_fast_math: the bits would not be the reference's"
#endif

#define RLT_EXPORT extern "C" __attribute__((visibility("default")))

namespace {

constexpr int kThreads = 256;
constexpr int64_t kMostRows = 0x7fffffff;  // of a grid's first dimension
constexpr int64_t kMostColumnBlocks = 65535;

__device__ float widen(__nv_bfloat16 x) { return __bfloat162float(x); }
__device__ float widen(__half x) { return __half2float(x); }
__device__ void narrow(float x, __nv_bfloat16& out) { out = __float2bfloat16_rn(x); }
__device__ void narrow(float x, __half& out) { out = __float2half_rn(x); }

template <typename T>
__device__ T silu_times(T gate, T up) {
  const float wide = widen(gate);
  T silu, product;
  narrow(__fdiv_rn(wide, __fadd_rn(expf(-wide), 1.0f)), silu);
  narrow(__fmul_rn(widen(silu), widen(up)), product);
  return product;
}

// Values as they lie in memory: two in a word, the first in its lower half.
template <typename T>
__device__ T value_of(unsigned bits) {
  const auto half_word = static_cast<unsigned short>(bits);
  T value;
  memcpy(&value, &half_word, sizeof value);
  return value;
}

template <typename T>
__device__ unsigned bits_of(T value) {
  unsigned short half_word;
  memcpy(&half_word, &value, sizeof value);
  return half_word;
}

template <typename T>
__device__ unsigned silu_times_pair(unsigned gate, unsigned up) {
  const unsigned low = bits_of(silu_times(value_of<T>(gate), value_of<T>(up)));
  const unsigned high = bits_of(silu_times(value_of<T>(gate >> 16), value_of<T>(up >> 16)));
  return low | high << 16;
}

template <typename T>
__device__ uint4 silu_times_all(uint4 gate, uint4 up) {
  return {silu_times_pair<T>(gate.x, up.x), silu_times_pair<T>(gate.y, up.y),
          silu_times_pair<T>(gate.z, up.z), silu_times_pair<T>(gate.w, up.w)};
}

template <typename T>
__device__ T silu_times_all(T gate, T up) {
  return silu_times(gate, up);
}

// One store of all 16 bytes, which the compiler would cut up.
__device__ void put(uint4* to, uint4 values) { __stcg(to, values); }
template <typename T>
__device__ void put(T* to, T value) {
  *to = value;
}

// One thread: a Word of one row, which is a value or 16 bytes of them. gate_up [rows, 2 width], rows
// `stride` apart; out [rows, width], contiguous; both aligned to a Word in every row.
//
// The pointers are not __restrict__: a load that counts as read-only may move before the wait.
template <typename T, typename Word>
__global__ void __launch_bounds__(kThreads)
    silu_mul_rows(const T* gate_up, T* out, int64_t width, int64_t stride) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  // In a chain of overlapping launches: wait for what the kernels in front wrote, then let the next
  // one come. Without the launch attribute both do nothing.
  cudaGridDependencySynchronize();
  cudaTriggerProgrammaticLaunchCompletion();
#endif
  constexpr int64_t N = sizeof(Word) / sizeof(T);
  const int64_t column = (int64_t(blockIdx.y) * kThreads + threadIdx.x) * N;
  if (column >= width) return;
  const T* row = gate_up + int64_t(blockIdx.x) * stride + column;
  const Word gate = *reinterpret_cast<const Word*>(row);
  const Word up = *reinterpret_cast<const Word*>(row + width);
  Word* to = reinterpret_cast<Word*>(out + int64_t(blockIdx.x) * width + column);
  put(to, silu_times_all<T>(gate, up));
}

template <typename T, typename Word>
cudaError_t launch(const void* gate_up, void* out, int64_t rows, int64_t width, int64_t stride,
                   bool overlap, cudaStream_t stream) {
  const int64_t columns = int64_t(kThreads) * int64_t(sizeof(Word) / sizeof(T));  // of a block
  const int64_t blocks = (width + columns - 1) / columns;
  if (rows > kMostRows || blocks > kMostColumnBlocks) return cudaErrorInvalidConfiguration;
  cudaLaunchAttribute attribute{};
  attribute.id = cudaLaunchAttributeProgrammaticStreamSerialization;
  attribute.val.programmaticStreamSerializationAllowed = 1;
  cudaLaunchConfig_t config{};
  config.gridDim = dim3(unsigned(rows), unsigned(blocks));
  config.blockDim = dim3(kThreads);
  config.stream = stream;
  config.attrs = &attribute;
  config.numAttrs = overlap ? 1 : 0;
  return cudaLaunchKernelEx(&config, silu_mul_rows<T, Word>, static_cast<const T*>(gate_up),
                            static_cast<T*>(out), width, stride);
}

// 16 bytes at a time where every row of both sides starts at a multiple of 16, else single values.
template <typename T>
cudaError_t launch_any(const void* gate_up, void* out, int64_t rows, int64_t width, int64_t stride,
                       bool overlap, cudaStream_t stream) {
  constexpr int64_t N = sizeof(uint4) / sizeof(T);
  const auto starts = reinterpret_cast<uintptr_t>(gate_up) | reinterpret_cast<uintptr_t>(out);
  const bool whole = width % N == 0 && stride % N == 0 && starts % sizeof(uint4) == 0;
  const auto run = whole ? launch<T, uint4> : launch<T, T>;
  return run(gate_up, out, rows, width, stride, overlap, stream);
}

}  // namespace

// half: 0 for bfloat16, 1 for float16. stride counts values. overlap: whether the kernel may start
// before the one in front of it has ended (compute capability 9.0 and later). Returns a cudaError_t.
RLT_EXPORT int rlt_silu_mul(int half, const void* gate_up, void* out, int64_t rows, int64_t width,
                            int64_t stride, int overlap, void* stream) {
  if (rows <= 0 || width <= 0) return cudaSuccess;
  const auto run = half ? launch_any<__half> : launch_any<__nv_bfloat16>;
  const auto where = static_cast<cudaStream_t>(stream);
  const cudaError_t code = run(gate_up, out, rows, width, stride, overlap != 0, where);
  if (code != cudaSuccess) cudaGetLastError();  // it is returned, and is not the next call's
  return code;
}

// The words for what rlt_silu_mul returned.
RLT_EXPORT const char* rlt_error_text(int code) {
  return cudaGetErrorString(static_cast<cudaError_t>(code));
}
