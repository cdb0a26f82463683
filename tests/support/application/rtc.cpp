// A program without device code of its own: it compiles a kernel from source at run time.
#include <sycl/sycl.hpp>
#include <iostream>
#include <string>
namespace syclexp = sycl::ext::oneapi::experimental;

int main(int argc, char **argv) {
  std::string factor = argc > 1 ? argv[1] : "1";
  sycl::queue queue;
  std::string source =
      "#include <sycl/sycl.hpp>\n"
      "namespace syclext = sycl::ext::oneapi;\n"
      "namespace syclexp = sycl::ext::oneapi::experimental;\n"
      "extern \"C\" SYCL_EXT_ONEAPI_FUNCTION_PROPERTY((syclexp::nd_range_kernel<1>))\n"
      "void fill(float *p, float v) {\n"
      "  auto i = syclext::this_work_item::get_nd_item<1>().get_global_linear_id(); p[i] = v * " + factor + ";\n"
      "}\n";
  auto bundle = syclexp::create_kernel_bundle_from_source(queue.get_context(), syclexp::source_language::sycl, source);
  auto kernel = syclexp::build(bundle).ext_oneapi_get_kernel("fill");
  float *values = sycl::malloc_shared<float>(16, queue);
  queue.submit([&](sycl::handler &handler) {
    handler.set_args(values, 3.0f);
    handler.parallel_for(sycl::nd_range<1>{16, 16}, kernel);
  }).wait();
  std::cout << values[5] << "\n";
  sycl::free(values, queue);
}
