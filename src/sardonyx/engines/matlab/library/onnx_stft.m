function y = onnx_stft(x, rank, step, window, count, onesided)
% Fourier transforms of frames of COUNT samples, STEP samples apart.
if rank < 3
    x = onnx_sized(x, [1, onnx_size(x, rank)]);
end
z = onnx_complex(x, 3);
s = onnx_size(z, 2);
n = double(count);
if isempty(n) && isempty(window)
    n = s(1);
elseif isempty(n)
    n = numel(window);
end
frames = floor((s(1) - n) / double(step)) + 1;
places = bsxfun(@plus, (1:n)', (0:frames - 1) * double(step));
z = reshape(z(places(:), :), [n, frames, s(2)]);
if ~isempty(window)
    z = bsxfun(@times, z, window(:));
end
z = fft(z, [], 1);
if onesided
    z = z(1:floor(n / 2) + 1, :, :);
end
y = onnx_parts(z, 3);
end
