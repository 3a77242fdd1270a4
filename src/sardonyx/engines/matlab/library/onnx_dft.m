function y = onnx_dft(x, rank, dim, count, inverse, onesided)
% A Fourier transform along a dimension; dimension 1 holds the parts of complex numbers.
z = onnx_complex(x, rank);
d = dim - 1;
n = double(count);
if inverse && onesided
    if isempty(n)
        n = 2 * (size(z, d) - 1);
    end
    half = floor(n / 2) + 1;
    after = zeros(1, rank - 1);
    after(d) = half - size(z, d);
    z = onnx_pad(z, rank - 1, zeros(1, rank - 1), after, 'constant', 0);
    subs = repmat({':'}, 1, max(rank - 1, 2));
    subs{d} = n - half + 1:-1:2;
    z = cat(d, z, conj(z(subs{:})));
    y = real(ifft(z, [], d));
    y = onnx_sized(y, [1, onnx_size(y, rank - 1)]);
    return
end
if isempty(n)
    n = size(z, d);
end
if inverse
    z = ifft(z, n, d);
else
    z = fft(z, n, d);
end
if onesided
    subs = repmat({':'}, 1, max(rank - 1, 2));
    subs{d} = 1:floor(n / 2) + 1;
    z = z(subs{:});
end
y = onnx_parts(z, rank - 1);
end
