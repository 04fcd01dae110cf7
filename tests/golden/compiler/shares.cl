#pragma OPENCL FP_CONTRACT OFF
#if defined(__clang__)
typedef ushort16 hal_ushort16 __attribute__((aligned(2)));
#define HAL_LOAD_ushort16(space, p) (*(const space hal_ushort16 *)(p))
#define HAL_STORE_ushort16(space, p, x) (*(space hal_ushort16 *)(p) = (x))
#else
#define HAL_LOAD_ushort16(space, p) vload16(0, p)
#define HAL_STORE_ushort16(space, p, x) vstore16(x, 0, p)
#endif

__attribute__((noinline)) void shares_instance(__global uchar *x_base, ulong x_offset, __global uchar *y_base, ulong y_offset, long n_value, const long program0)
{
    __global ushort *x_data = (__global ushort *)(x_base + x_offset);
    __global float *y_data = (__global float *)(y_base + y_offset);
    const long t1 = n_value;
    ushort v2[16];
    const long t3 = program0;
    const long t4 = (long)((ulong)t3 * (ulong)t1);
    if (t1 >= 16) {
        {
            HAL_STORE_ushort16(, &v2[0], HAL_LOAD_ushort16(__global, &x_data[t4]));
        }
    }
    else {
        for (int i5 = 0; i5 < 16; ++i5) {
            v2[i5] = i5 < t1 ? x_data[t4 + i5] : 0;
        }
    }
    float v7[1];
    {
        v7[0] = (-0x0.0p+0f);
    }
    for (int i8 = 0; i8 < 16; ++i8) {
        const ushort t9 = v2[i8];
        const float t10 = as_float((uint)(uint)((uint)(uint)(ushort)t9 << 16U));
        v7[0] = (v7[0] + t10);
    }
    const float t11 = v7[0];
    const float t16 = v7[0];
    if (t1 >= 16) {
        for (int i6 = 0; i6 < 16; ++i6) {
            const ushort t12 = v2[i6];
            const float t13 = as_float((uint)(uint)((uint)(uint)(ushort)t12 << 16U));
            const float t14 = (t13 / t11);
            y_data[t4 + i6] = t14;
        }
    }
    else {
        for (int i15 = 0; i15 < 16; ++i15) {
            const ushort t17 = v2[i15];
            const float t18 = as_float((uint)(uint)((uint)(uint)(ushort)t17 << 16U));
            const float t19 = (t18 / t16);
            if (i15 < t1) y_data[t4 + i15] = t19;
        }
    }
}

__kernel void shares_kernel(__global uchar *x_base, ulong x_offset, __global uchar *y_base, ulong y_offset, long n_value)
{
    shares_instance(x_base, x_offset, y_base, y_offset, n_value, (long)get_global_id(0));
}
